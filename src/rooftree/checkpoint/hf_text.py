"""Tokenizer, special tokens, chat template and sampling defaults of a Hugging Face directory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from rooftree.checkpoint.base import TextAssets
from rooftree.checkpoint.fields import Fields
from rooftree.checkpoint.hf_template import chat_template
from rooftree.checkpoint.json_file import read_bytes, read_optional_json
from rooftree.errors import ModelError

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
GENERATION_CONFIG = "generation_config.json"

_DEFAULTS: dict[str, tuple[Callable[[float], bool], str]] = {
    "temperature": (lambda value: value >= 0, "a number of 0 or more"),
    "top_p": (lambda value: 0 < value <= 1, "a number above 0 and at most 1"),
    "top_k": (lambda value: value >= -1 and value == int(value), "a whole number"),
    "min_p": (lambda value: 0 <= value <= 1, "a number from 0 to 1"),
    "repetition_penalty": (lambda value: value > 0, "a number above 0"),
}


class _AddedToken(msgspec.Struct):
    id: int
    content: str


class _TokenizerHead(msgspec.Struct):
    added_tokens: list[_AddedToken] = []


def hf_text(folder: Path, config: Mapping[str, Any], vocab_size: int) -> TextAssets:
    """What the text floor needs; ``config`` is the parsed config.json.

    A token ends an answer if generation_config.json, config.json or the tokenizer calls it end of sequence:
    the three are often incomplete, each in its own way. The tokenizer decides whether there is a token for
    the beginning, since it would write it; config.json is asked only where the tokenizer does not say.

    Raises:
        ModelError: a file that is missing or damaged, or an id outside the vocabulary.
    """
    path = folder / TOKENIZER
    if not path.exists():
        raise ModelError(
            f"{path}: is missing; save the model's fast tokenizer there (AutoTokenizer.from_pretrained(...)"
            ".save_pretrained(...))"
        )
    tokenizer_json = read_bytes(path)
    tokenizer_config = read_optional_json(folder / TOKENIZER_CONFIG)
    generation = Fields(read_optional_json(folder / GENERATION_CONFIG), str(folder / GENERATION_CONFIG))
    model = Fields(config, str(folder / "config.json"))
    named = _SpecialTokens(path, tokenizer_json, tokenizer_config, vocab_size)
    ends: Iterable[int] = (
        *generation.token_ids("eos_token_id", vocab_size),
        *model.token_ids("eos_token_id", vocab_size),
        *named.ids("eos_token"),
    )
    if "bos_token" in tokenizer_config:
        begins = named.ids("bos_token")
    else:
        begins = model.token_ids("bos_token_id", vocab_size)
    return TextAssets(
        tokenizer_json=tokenizer_json,
        tokenizer_config=tokenizer_config,
        chat_template=chat_template(folder, tokenizer_config),
        bos_token_id=begins[0] if begins else None,
        eos_token_ids=tuple(dict.fromkeys(ends)),
        generation_defaults=_generation_defaults(generation),
    )


class _SpecialTokens:
    """Ids of the tokens that tokenizer_config.json names by their text."""

    def __init__(self, path: Path, raw: bytes, config: Mapping[str, Any], vocab_size: int) -> None:
        self._config = config
        self._vocab_size = vocab_size
        try:
            added = msgspec.json.decode(raw, type=_TokenizerHead).added_tokens
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ModelError(f"{path}: is not a tokenizer.json ({error})") from error
        self._ids = {token.content: token.id for token in added}

    def ids(self, name: str) -> tuple[int, ...]:
        """The id, if the token is named and known; spelled as a string or as an object with its content."""
        token = self._config.get(name)
        text = token.get("content") if isinstance(token, Mapping) else token
        found = self._ids.get(text) if isinstance(text, str) else None
        return (found,) if found is not None and 0 <= found < self._vocab_size else ()


def _generation_defaults(fields: Fields) -> dict[str, float | int]:
    """Sampling values that the model's makers recommend; none if they recommend greedy decoding."""
    if not fields.flag("do_sample", True):
        return {}
    defaults: dict[str, float | int] = {}
    for name, (fits, wanted) in _DEFAULTS.items():
        value = fields.get(name)
        if value is None:
            continue
        if type(value) not in (int, float) or not math.isfinite(value) or not fits(value):
            fields.fail(name, f"must be {wanted}, not {value!r}")
        defaults[name] = int(value) if name == "top_k" else float(value)
    return defaults
