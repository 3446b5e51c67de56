"""Tokenizers from a Hugging Face directory: tokenizer.json, corrected by what tokenizer_config.json says."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

import tokenizers

from rooftree.checkpoint.base import TextAssets
from rooftree.errors import ModelError
from rooftree.text.backend import Backend


def load_hf(assets: TextAssets) -> Backend:
    """Build the tokenizer that ``transformers`` would build from the same two files.

    tokenizer.json decides, except that tokens which only tokenizer_config.json declares special are special,
    and that its ``add_bos_token``, where present, overrules the post-processor.

    Raises:
        ModelError: one of the files is damaged, or puts special tokens in a way that is not known.
    """
    config = assets.tokenizer_config
    tokenizer = _parse(assets.tokenizer_json or b"")
    _declare_added_tokens(tokenizer, config)
    named = _named_tokens(tokenizer, config, assets)
    bos_token_id = assets.bos_token_id
    if bos_token_id is None and "bos_token" in named:
        bos_token_id = tokenizer.token_to_id(named["bos_token"])
    return Backend(
        tokenizer=tokenizer,
        prefix_ids=_prefix_ids(tokenizer, config, named),
        template_variables=named,
        bos_token_id=bos_token_id,
    )


def _parse(document: bytes) -> tokenizers.Tokenizer:
    try:
        tokenizer = tokenizers.Tokenizer.from_buffer(document)
    except Exception as error:
        raise ModelError(f"tokenizer.json cannot be read: {error}") from error
    # A file may carry the truncation or padding of its training set, which would silently cut prompts.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _declare_added_tokens(tokenizer: tokenizers.Tokenizer, config: Mapping[str, Any]) -> None:
    """Add what only the config declares, where the id it declares is the id the tokenizer gives."""
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    for token_id, entry in _declared(config):
        content = entry["content"]
        in_place = tokenizer.token_to_id(content)
        fits = in_place == token_id or (in_place is None and token_id == tokenizer.get_vocab_size())
        if content not in known and fits:
            flags = {
                name: bool(entry.get(name)) for name in ("single_word", "lstrip", "rstrip", "normalized")
            }
            special = bool(entry.get("special"))
            tokenizer.add_tokens([tokenizers.AddedToken(content, special=special, **flags)])
            known.add(content)
    for content in dict(_config_tokens(config)).values():
        if content not in known and tokenizer.token_to_id(content) is not None:
            tokenizer.add_special_tokens([tokenizers.AddedToken(content, special=True, normalized=False)])


def _declared(config: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
    entries = config.get("added_tokens_decoder") or {}
    if not isinstance(entries, Mapping) or not all(map(_is_declaration, entries.items())):
        raise ModelError(
            "tokenizer_config.json: added_tokens_decoder must give each id a token with its content"
        )
    return sorted(((int(token_id), entry) for token_id, entry in entries.items()), key=itemgetter(0))


def _is_declaration(item: tuple[str, Any]) -> bool:
    token_id, entry = item
    return token_id.isdecimal() and isinstance(entry, Mapping) and isinstance(entry.get("content"), str)


def _config_tokens(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The config's ``*_token`` entries; each is a text, or a record with one."""
    for name, value in config.items():
        content = value.get("content") if isinstance(value, Mapping) else value
        if name.endswith("_token") and isinstance(content, str):
            yield name, content


def _named_tokens(
    tokenizer: tokenizers.Tokenizer, config: Mapping[str, Any], assets: TextAssets
) -> dict[str, str]:
    """The tokens by name. Without a tokenizer_config.json, those whose ids the model's own files give."""
    if config:
        return dict(_config_tokens(config))
    ids = {"bos_token": assets.bos_token_id, "eos_token": next(iter(assets.eos_token_ids), None)}
    texts = {name: tokenizer.id_to_token(token_id) for name, token_id in ids.items() if token_id is not None}
    return {name: text for name, text in texts.items() if text is not None}


def _prefix_ids(
    tokenizer: tokenizers.Tokenizer, config: Mapping[str, Any], named: Mapping[str, str]
) -> tuple[int, ...]:
    prefix = _processor_prefix(tokenizer)
    add_bos = config.get("add_bos_token")
    bos = tokenizer.token_to_id(named["bos_token"]) if "bos_token" in named else None
    if add_bos is None or bos is None:
        return prefix
    others = tuple(token_id for token_id in prefix if token_id != bos)
    return (bos, *others) if add_bos else others


def _processor_prefix(tokenizer: tokenizers.Tokenizer) -> tuple[int, ...]:
    if tokenizer.post_processor is None:
        return ()
    state = json.loads(tokenizer.post_processor.__getstate__())
    steps = state["processors"] if state["type"] == "Sequence" else [state]
    return tuple(token_id for step in reversed(steps) for token_id in _step_prefix(step))


def _step_prefix(step: Mapping[str, Any]) -> Sequence[int]:
    """Ids that one post-processor puts before a single text."""
    kind = step["type"]
    if kind == "ByteLevel":
        return ()
    if kind in ("BertProcessing", "RobertaProcessing"):
        return (step["cls"][1],)
    if kind != "TemplateProcessing":
        raise ModelError(f"tokenizer.json: the post-processor {kind} is not supported")
    ids: list[int] = []
    for item in step["single"]:
        if "Sequence" in item:
            break
        ids += step["special_tokens"][item["SpecialToken"]["id"]]["ids"]
    return ids
