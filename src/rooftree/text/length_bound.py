"""How much text one token can stand for: what bounds a text's tokens from below before it is tokenized."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import models

from rooftree.text.pieces import BYTE_OF

# Canonical composition makes one character of up to four, such as U+1F82.
_COMPOSED = 4
_NEVER_SHORTER = ("Prepend", "ByteLevel", "NFD", "NFKD", "Lowercase")
_KEEPS_ALL = ("ByteLevel", "Metaspace", "Digits", "UnicodeScripts", "FixedLength")
_SPLITS = ("Split", "Punctuation")


@dataclass(frozen=True, slots=True)
class LengthBound:
    """What is known of any text's tokens.

    Attributes:
        longest: the most characters that one token stands for.
        dropped: the characters for which there may be no token at all.
    """

    longest: int
    dropped: str = ""

    def fewest_tokens(self, text: str) -> int:
        """A number of tokens that the text has at least."""
        return math.ceil((len(text) - sum(map(text.count, self.dropped))) / self.longest)


def length_bound(tokenizer: tokenizers.Tokenizer) -> LengthBound | None:
    """What follows from a tokenizer's parts.

    None where nothing does: the tokenizer drops text of many kinds, as some do with all spaces, or gives one
    token for a stretch of any length.
    """
    normalizer = _steps(tokenizer.normalizer, "normalizers")
    pre_tokenizer = _steps(tokenizer.pre_tokenizer, "pretokenizers")
    shrinking = _shrinking(normalizer)
    if shrinking is None or not all(map(_keeps_all, pre_tokenizer)):
        return None
    if any(token.lstrip or token.rstrip for token in tokenizer.get_added_tokens_decoder().values()):
        return None
    vocab = tokenizer.get_vocab()
    byte_level = any(step["type"] == "ByteLevel" for step in (*normalizer, *pre_tokenizer))
    dropped = _dropped(tokenizer.model, vocab, byte_level=byte_level)
    return None if dropped is None else LengthBound(shrinking * max(map(len, vocab), default=1), dropped)


def _steps(part: Any, members: str) -> Sequence[Mapping[str, Any]]:
    """A normalizer or pre-tokenizer as its steps; ``members``: what holds those of a Sequence."""
    return [] if part is None else _flat(json.loads(part.__getstate__()), members)


def _flat(state: Mapping[str, Any], members: str) -> Sequence[Mapping[str, Any]]:
    if state["type"] != "Sequence":
        return [state]
    return [step for member in state[members] for step in _flat(member, members)]


def _shrinking(normalizer: Sequence[Mapping[str, Any]]) -> int | None:
    """How many characters may become one; None where any number may become none."""
    factors = [_step_shrinking(step) for step in normalizer]
    known = [factor for factor in factors if factor is not None]
    return math.prod(known) if len(known) == len(factors) else None


def _step_shrinking(step: Mapping[str, Any]) -> int | None:
    kind = step["type"]
    if kind in _NEVER_SHORTER:
        return 1
    if kind in ("NFC", "NFKC"):
        return _COMPOSED
    if kind == "Replace" and step["content"] and "String" in step["pattern"]:
        return max(1, math.ceil(len(step["pattern"]["String"]) / len(step["content"])))
    return None


def _keeps_all(step: Mapping[str, Any]) -> bool:
    kind = step["type"]
    return kind in _KEEPS_ALL or (kind in _SPLITS and step["behavior"] != "Removed")


def _dropped(model: models.Model, vocab: Mapping[str, int], *, byte_level: bool) -> str | None:
    """The characters without a token; None where they are not so few, or many become one token."""
    if not isinstance(model, models.BPE):
        return None
    if model.unk_token is not None and not model.fuse_unk:
        return ""
    if byte_level:
        return _ascii_only(byte for stand_in, byte in BYTE_OF.items() if stand_in not in vocab)
    if model.byte_fallback and all(f"<0x{byte:02X}>" in vocab for byte in range(256)):
        return ""
    return None


def _ascii_only(missing: Iterable[int]) -> str | None:
    """The characters lost with these bytes. One beyond ASCII is lost only if its continuation bytes are."""
    missing = sorted(missing)
    if any(0x80 <= byte < 0xC0 for byte in missing):
        return None
    return "".join(chr(byte) for byte in missing if byte < 0x80)
