"""Tiny tokenizers of every supported shape, written as the files that models come with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers

from rigs.tokenizer import ALPHABET, spell
from rooftree.checkpoint.base import TextAssets
from rooftree.text.tokenizer import Tokenizer

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
SPM_STEPS: list[dict[str, Any]] = [
    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
]
SPM = {"type": "Sequence", "decoders": SPM_STEPS}
METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}


def added(token_id: int, content: str, *, special: bool = True) -> dict[str, Any]:
    """An entry of tokenizer.json's ``added_tokens``."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token_id, "content": content, "special": special, **flags}


def document(
    tokens: Sequence[str],
    *,
    merges: Sequence[tuple[str, str]] = (),
    decoder: Mapping[str, Any] | None = BYTE_LEVEL,
    pre_tokenizer: Mapping[str, Any] | None = BYTE_LEVEL,
    added_tokens: Sequence[Mapping[str, Any]] = (),
    **parts: Any,
) -> bytes:
    """A tokenizer.json with a BPE model of these tokens."""
    model = {
        "type": "BPE",
        "vocab": {token: index for index, token in enumerate(tokens)},
        "merges": [list(pair) for pair in merges],
    }
    whole = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "normalizer": None,
        "post_processor": None,
        "pre_tokenizer": pre_tokenizer,
        "decoder": decoder,
        "added_tokens": list(added_tokens),
        "model": model,
    }
    return json.dumps(whole | parts).encode()


def load(tokenizer_json: bytes, vocab_size: int | None = None, **assets: Any) -> Tokenizer:
    return Tokenizer.from_assets(TextAssets(tokenizer_json=tokenizer_json, **assets), vocab_size)


def library(tokenizer_json: bytes) -> tokenizers.Tokenizer:
    """The same file in the library's own hands."""
    return tokenizers.Tokenizer.from_buffer(tokenizer_json)


def byte_level_document(
    pieces: Sequence[str | bytes] = (), *, specials: Sequence[str] = (), **parts: Any
) -> bytes:
    """A byte-level vocabulary: the 256 bytes, then these pieces, then special tokens."""
    tokens = list(dict.fromkeys([*ALPHABET, *map(spell, pieces)]))
    first = len(tokens)
    entries = [added(first + index, text) for index, text in enumerate(specials)]
    return document([*tokens, *specials], added_tokens=entries, **parts)


def byte_level(pieces: Sequence[str | bytes] = (), *, specials: Sequence[str] = ()) -> Tokenizer:
    return load(byte_level_document(pieces, specials=specials))


def id_of(tokenizer: Tokenizer, piece: str | bytes) -> int:
    """Id of the byte-level token that is exactly these bytes."""
    raw = piece.encode() if isinstance(piece, str) else piece
    return next(index for index in range(tokenizer.vocab_size) if tokenizer.token_bytes(index) == raw)


def bos_template(token: str, token_id: int, *, eos: tuple[str, int] | None = None) -> dict[str, Any]:
    """A post-processor that puts a token before a text, and another behind it."""
    names = {token: token_id} | ({eos[0]: eos[1]} if eos else {})
    single: list[dict[str, Any]] = [
        {"SpecialToken": {"id": token, "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
    ]
    if eos:
        single.append({"SpecialToken": {"id": eos[0], "type_id": 0}})
    pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
    special = {name: {"id": name, "ids": [index], "tokens": [name]} for name, index in names.items()}
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special}


SPM_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def spm_document(pieces: Sequence[str], *, decoder: Mapping[str, Any] | None = SPM) -> bytes:
    """A SentencePiece vocabulary: <unk>, <s>, </s>, the bytes, then these pieces."""
    tokens = list(dict.fromkeys(["<unk>", "<s>", "</s>", *SPM_BYTES, *pieces]))
    specials = [added(index, tokens[index]) for index in range(3)]
    return document(tokens, decoder=decoder, pre_tokenizer=None, added_tokens=specials)
