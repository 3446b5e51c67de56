"""Tokenizers rebuilt from the ``tokenizer.ggml.*`` metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from rooftree.errors import ModelError
from rooftree.text import sentencepiece
from rooftree.text.backend import Backend
from rooftree.text.pretokenizers import find_pre_tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

# Template variable -> metadata key (the spelling of "seperator" is GGUF's own).
_NAMED_IDS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
    "sep_token": "seperator_token_id",
    "cls_token": "cls_token_id",
    "mask_token": "mask_token_id",
}
_ENDING_KEYS = ("bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id")
_NUM_BYTES = 256


@dataclass(frozen=True, slots=True, eq=False)
class _Vocab:
    """The metadata once checked: ``types`` and ``tokens`` are equally long, ``ids`` maps texts to ids."""

    metadata: Mapping[str, Any]
    tokens: Sequence[str]
    types: Sequence[int]
    ids: Mapping[str, int]

    def texts_of(self, kind: int) -> list[str]:
        return [token for token, its_kind in zip(self.tokens, self.types, strict=True) if its_kind == kind]

    def flag(self, key: str, default: bool) -> bool:
        value = self.metadata.get(key, default)
        if not isinstance(value, bool):
            raise ModelError(f"tokenizer.ggml.{key} must be true or false, not {value!r}")
        return value

    def token_id(self, key: str) -> int | None:
        value = self.metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or not 0 <= value < len(self.tokens):
            raise ModelError(
                f"tokenizer.ggml.{key} is {value!r}; the vocabulary has {len(self.tokens)} tokens"
            )
        return value


def rebuild_gguf(metadata: Mapping[str, Any], bos_token_id: int | None = None) -> Backend:
    """Build a tokenizer from GGUF metadata, keys without the prefix ``tokenizer.ggml.``.

    Special are the tokens of type control and unknown, and those named as beginning or end. Tokens of type
    user-defined are found in text before anything else but are not special. Whether beginning-of-sequence is
    added follows ``add_bos_token``, or llama.cpp's default for the model and pre-tokenizer; a SentencePiece
    file that does not name it has it at id 1, as llama.cpp assumes.

    Args:
        bos_token_id: beginning-of-sequence where it is known from elsewhere; else the metadata's own.

    Raises:
        ModelError: a vocabulary that is damaged, or of a kind that is not supported; it names the key.
    """
    kind = metadata.get("model")
    build = _BUILDERS.get(kind) if isinstance(kind, str) else None
    if build is None:
        raise ModelError(
            f"tokenizer.ggml.model: the vocabulary {kind!r} is not supported; supported are "
            "gpt2 (byte-level BPE), llama (SentencePiece BPE) and t5 (unigram)"
        )
    vocab = _checked_vocab(metadata)
    tokenizer, adds_bos = build(vocab)
    _add_special_tokens(tokenizer, vocab)
    bos = vocab.token_id("bos_token_id") if bos_token_id is None else bos_token_id
    if bos is None and kind == "llama" and len(vocab.tokens) > 1 and vocab.types[1] == CONTROL:
        bos = 1
    add_bos = vocab.flag("add_bos_token", adds_bos)
    if add_bos and bos is None:
        raise ModelError(
            "tokenizer.ggml.add_bos_token is true (or is so by default), but bos_token_id is not set"
        )
    silent = frozenset(index for index, its_kind in enumerate(vocab.types) if its_kind == UNUSED)
    return Backend(
        tokenizer=tokenizer,
        prefix_ids=(bos,) if add_bos and bos is not None else (),
        template_variables=_template_variables(vocab, bos),
        bos_token_id=bos,
        silent_ids=silent,
    )


def _checked_vocab(metadata: Mapping[str, Any]) -> _Vocab:
    tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(_list(metadata, "tokens", str))]
    ids = {token: index for index, token in enumerate(tokens)}
    if not tokens:
        raise ModelError("tokenizer.ggml.tokens is empty")
    if len(ids) < len(tokens):
        index, token = next((i, token) for i, token in enumerate(tokens) if ids[token] != i)
        raise ModelError(f"tokenizer.ggml.tokens: {token!r} appears twice, as ids {index} and {ids[token]}")
    types: Sequence[int] = [NORMAL] * len(tokens)
    if "token_type" in metadata:
        types = _list(metadata, "token_type", int, length=len(tokens))
    return _Vocab(metadata, tokens, types, ids)


def _list(metadata: Mapping[str, Any], key: str, kind: type, length: int | None = None) -> Sequence[Any]:
    """A list of the metadata. GGUF arrays hold one type only, so the first entry speaks for all."""
    value = metadata.get(key)
    if not isinstance(value, (list, tuple)) or (value and type(value[0]) is not kind):
        raise ModelError(f"tokenizer.ggml.{key} must be a list of {kind.__name__}; it is missing or not that")
    if length is not None and len(value) != length:
        raise ModelError(f"tokenizer.ggml.{key} has {len(value)} entries for {length} tokens")
    return value


def _build_byte_level(vocab: _Vocab) -> tuple[tokenizers.Tokenizer, bool]:
    rules = find_pre_tokenizer(vocab.metadata.get("pre") or "default")
    model = _bpe(vocab, _stored_merges(vocab), ignore_merges=rules.ignore_merges)
    tokenizer = tokenizers.Tokenizer(model)
    if rules.nfc:
        tokenizer.normalizer = normalizers.NFC()
    splits: list[pre_tokenizers.PreTokenizer] = [
        pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in rules.patterns
    ]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, rules.add_bos


def _stored_merges(vocab: _Vocab) -> list[tuple[str, str]]:
    pairs = []
    for index, merge in enumerate(_list(vocab.metadata, "merges", str)):
        cut = merge.find(" ", 1)
        if cut < 0:
            raise ModelError(
                f"tokenizer.ggml.merges: entry {index}, {merge!r}, is not two tokens and a space"
            )
        pairs.append((merge[:cut], merge[cut + 1 :]))
    return pairs


def _build_sentencepiece_bpe(vocab: _Vocab) -> tuple[tokenizers.Tokenizer, bool]:
    rows = zip(vocab.tokens, _scores(vocab), vocab.types, strict=True)
    merges = sentencepiece.merges_from_scores({token: score for token, score, kind in rows if kind == NORMAL})
    unknown = vocab.texts_of(UNKNOWN)
    model = _bpe(
        vocab,
        merges,
        unk_token=unknown[0] if unknown else None,
        fuse_unk=True,
        byte_fallback=_has_all_bytes(vocab),
    )
    prefix = vocab.flag("add_space_prefix", True)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = sentencepiece.bpe_normalizer(add_space_prefix=prefix)
    tokenizer.decoder = sentencepiece.bpe_decoder(add_space_prefix=prefix)
    return tokenizer, True


def _build_unigram(vocab: _Vocab) -> tuple[tokenizers.Tokenizer, bool]:
    unknown = vocab.token_id("unknown_token_id")
    if unknown is None:
        unknown = next((index for index, kind in enumerate(vocab.types) if kind == UNKNOWN), None)
    pieces = list(zip(vocab.tokens, _scores(vocab), strict=True))
    try:
        model = models.Unigram(pieces, unk_id=unknown, byte_fallback=_has_all_bytes(vocab))
    except Exception as error:
        raise ModelError(f"tokenizer.ggml.tokens do not make a unigram vocabulary: {error}") from error
    prefix = vocab.flag("add_space_prefix", False)
    charsmap = bytes([value & 0xFF for value in vocab.metadata.get("precompiled_charsmap") or ()])
    tokenizer = tokenizers.Tokenizer(model)
    remove_extra = vocab.flag("remove_extra_whitespaces", False)
    try:
        normalizer = sentencepiece.unigram_normalizer(charsmap, remove_extra_spaces=remove_extra)
    except Exception as error:
        raise ModelError(f"tokenizer.ggml.precompiled_charsmap is damaged: {error}") from error
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = sentencepiece.unigram_pre_tokenizer(add_space_prefix=prefix)
    tokenizer.decoder = sentencepiece.bpe_decoder(add_space_prefix=prefix)
    return tokenizer, False


_BUILDERS: Mapping[str, Callable[[_Vocab], tuple[tokenizers.Tokenizer, bool]]] = {
    "gpt2": _build_byte_level,
    "llama": _build_sentencepiece_bpe,
    "t5": _build_unigram,
}


def _scores(vocab: _Vocab) -> Sequence[float]:
    return [float(score) for score in _list(vocab.metadata, "scores", float, length=len(vocab.tokens))]


def _bpe(vocab: _Vocab, merges: list[tuple[str, str]], **options: Any) -> models.BPE:
    try:
        return models.BPE(dict(vocab.ids), merges, **options)
    except Exception as error:
        raise ModelError(f"tokenizer.ggml.merges do not fit tokenizer.ggml.tokens: {error}") from error


def _has_all_bytes(vocab: _Vocab) -> bool:
    return all(f"<0x{byte:02X}>" in vocab.ids for byte in range(_NUM_BYTES))


def _add_special_tokens(tokenizer: tokenizers.Tokenizer, vocab: _Vocab) -> None:
    endings = {vocab.token_id(key) for key in _ENDING_KEYS}
    added = []
    for index, (token, kind) in enumerate(zip(vocab.tokens, vocab.types, strict=True)):
        special = kind in (CONTROL, UNKNOWN) or index in endings
        if special or kind == USER_DEFINED:
            added.append(AddedToken(token, special=special, normalized=False))
    tokenizer.add_tokens(added)


def _template_variables(vocab: _Vocab, bos: int | None) -> dict[str, str]:
    ids = {name: vocab.token_id(key) for name, key in _NAMED_IDS.items()} | {"bos_token": bos}
    return {name: vocab.tokens[index] for name, index in ids.items() if index is not None}
