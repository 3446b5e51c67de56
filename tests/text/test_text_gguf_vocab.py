"""Tokenizers rebuilt from GGUF metadata, against tokenizer.json files and naive merging."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from text_rigs import SPM, SPM_BYTES, added, document, library

from rigs.real_model import smollm2_path
from rigs.tokenizer import ALPHABET, tiny_tokenizer
from rooftree.checkpoint.base import TextAssets
from rooftree.checkpoint.gguf import read_gguf
from rooftree.errors import ModelError
from rooftree.text.sentencepiece import merges_from_scores
from rooftree.text.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
TEXTS = st.text(alphabet=st.sampled_from("etaoin th.,'sS 12345\n\té漢😀<>|_"), max_size=40)


def rebuild(vocab_size: int | None = None, **metadata: Any) -> Tokenizer:
    return Tokenizer.from_assets(TextAssets(gguf_vocab=metadata), vocab_size)


def byte_level_metadata(specials: Sequence[str] = ("<|end|>",), **changes: Any) -> dict[str, Any]:
    tiny = tiny_tokenizer(400)
    tokens = [*ALPHABET, *tiny.tokens[260:], *specials]
    metadata = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "merges": [" ".join(pair) for pair in tiny.merges],
        "token_type": [CONTROL if token in specials else NORMAL for token in tokens],
        "eos_token_id": len(tokens) - 1,
    }
    return metadata | changes


def as_tokenizer_json(metadata: dict[str, Any], pre_tokenizer: dict[str, Any], **parts: Any) -> bytes:
    tokens = metadata["tokens"]
    specials = [i for i, kind in enumerate(metadata["token_type"]) if kind == CONTROL]
    return document(
        tokens,
        merges=[tuple(merge.split(" ")) for merge in metadata["merges"]],
        pre_tokenizer=pre_tokenizer,
        added_tokens=[added(i, tokens[i]) for i in specials],
        **parts,
    )


def steps(*pre_tokenizers: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(pre_tokenizers)}


def byte_level(use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PUBLISHED = {
    "gpt-2": (byte_level(True), {}),
    "smollm": (steps({"type": "Digits", "individual_digits": True}, byte_level(True)), {}),
    "llama-bpe": (steps(split(LLAMA3), byte_level(False)), {}),
    "qwen2": (steps(split(LLAMA3.replace("{1,3}", "")), byte_level(False)), {"normalizer": {"type": "NFC"}}),
}


@pytest.mark.parametrize("pre", PUBLISHED)
def test_byte_level_equals_the_tokenizer_json_of_the_same_vocabulary(pre: str) -> None:
    metadata = byte_level_metadata(pre=pre, add_bos_token=False)
    pre_tokenizer, parts = PUBLISHED[pre]
    source = as_tokenizer_json(metadata, pre_tokenizer, **parts)
    reference, rebuilt = library(source), rebuild(**metadata)

    @given(TEXTS)
    def check(text: str) -> None:
        ids = rebuilt.encode(text, add_special_tokens=True)
        assert ids == reference.encode(text).ids
        assert rebuilt.decode(ids) == reference.decode(ids)

    check()


def test_pieces_that_are_tokens_are_taken_whole_where_the_model_ignores_merges() -> None:
    metadata = byte_level_metadata(add_bos_token=False)
    metadata["tokens"].append("Ġxyzzy")
    metadata["token_type"].append(NORMAL)
    whole = [len(metadata["tokens"]) - 1]
    assert rebuild(**metadata | {"pre": "llama-bpe"}).encode(" xyzzy", add_special_tokens=True) == whole
    assert rebuild(**metadata | {"pre": "qwen2"}).encode(" xyzzy", add_special_tokens=True) != whole


def test_token_types() -> None:
    tokens = [*ALPHABET, "<c>", "<u>", "<d>", "<n>", "<x>"]
    types = [NORMAL] * 256 + [CONTROL, USER_DEFINED, UNKNOWN, NORMAL, UNUSED]
    tokenizer = rebuild(model="gpt2", pre="gpt-2", tokens=tokens, merges=[], token_type=types)
    assert tokenizer.encode("<c><u><d>", add_special_tokens=True) == [256, 257, 258]
    assert len(tokenizer.encode("<n><x>", add_special_tokens=True)) == 6
    assert tokenizer.special_token_ids == {"<c>": 256, "<d>": 258}
    assert tokenizer.decode(list(range(256, 261))) == "<u><n>"
    assert tokenizer.is_padding(260)


def test_a_token_named_as_an_end_is_special_whatever_its_type() -> None:
    metadata = byte_level_metadata()
    metadata["token_type"] = [NORMAL] * len(metadata["tokens"])
    tokenizer = rebuild(**metadata)
    assert tokenizer.special_token_ids == {"<|end|>": len(metadata["tokens"]) - 1}
    assert tokenizer.template_variables == {"eos_token": "<|end|>"}


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({"pre": "gpt-2"}, 0),
        ({"pre": "qwen2"}, 0),
        ({"pre": "llama-bpe"}, 1),
        ({"pre": "tekken"}, 1),
        ({"pre": "llama-bpe", "add_bos_token": False}, 0),
        ({"pre": "gpt-2", "add_bos_token": True}, 1),
        ({"pre": "gpt-2", "add_eos_token": True}, 0),
    ],
)
def test_bos_is_added_as_llama_cpp_adds_it(changes: dict[str, Any], count: int) -> None:
    metadata = byte_level_metadata(("<s>", "</s>"), **changes)
    bos = metadata["tokens"].index("<s>")
    tokenizer = rebuild(bos_token_id=bos, **metadata)
    assert tokenizer.encode("e", add_special_tokens=True) == [bos] * count + [ALPHABET.index("e")]
    assert tokenizer.encode("e", add_special_tokens=False) == [ALPHABET.index("e")]


def test_bos_that_is_to_be_added_must_be_there() -> None:
    with pytest.raises(ModelError, match="bos_token_id is not set"):
        rebuild(**byte_level_metadata(add_bos_token=True))


# SentencePiece


def spm_metadata(pieces: Sequence[str], **changes: Any) -> dict[str, Any]:
    tokens = ["<unk>", "<s>", "</s>", *SPM_BYTES, *pieces]
    ranked = [-float(index) for index in range(len(pieces))]
    metadata = {
        "model": "llama",
        "tokens": tokens,
        "scores": [0.0] * (3 + 256) + ranked,
        "token_type": [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces),
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return metadata | changes


def naive_spm(text: str, scores: dict[str, float]) -> list[str]:
    """Join the best-scored neighbours, the leftmost first, until none can be joined."""
    symbols = list(text)
    while True:
        joints = [(scores.get(a + b), -index) for index, (a, b) in enumerate(pairwise(symbols))]
        best = max((joint for joint in joints if joint[0] is not None), default=None)
        if best is None:
            return symbols
        at = -best[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]


@st.composite
def trained_pieces(draw: st.DrawFn) -> list[str]:
    """Pieces as BPE training makes them: the characters, each further one joined from two that are there."""
    pieces = ["▁", "a", "b", "c"]
    for _ in range(draw(st.integers(0, 12))):
        joined = draw(st.sampled_from(pieces)) + draw(st.sampled_from(pieces))
        if joined not in pieces and len(joined) < 8:
            pieces.append(joined)
    return pieces


@settings(max_examples=300)
@given(trained_pieces(), st.text(alphabet="abc ", min_size=1, max_size=24))
def test_sentencepiece_merges_as_sentencepiece_does(pieces: list[str], text: str) -> None:
    # Characters come last in a SentencePiece vocabulary, after the pieces in the order they were joined.
    ordered = [*pieces[4:], *pieces[:4]]
    tokenizer = rebuild(**spm_metadata(ordered))
    scores = {piece: -float(index) for index, piece in enumerate(ordered)}
    names = [tokenizer.id_to_token(index) for index in tokenizer.encode(text, add_special_tokens=False)]
    assert names == naive_spm("▁" + text.replace(" ", "▁"), scores)


def test_merges_come_best_piece_first_and_in_every_split() -> None:
    scores = {"a": -9.0, "b": -8.0, "ab": -1.0, "ba": -2.0, "aba": -0.5, "zz": -0.1}
    assert merges_from_scores(scores) == [("ab", "a"), ("a", "ba"), ("a", "b"), ("b", "a")]


SPM_PIECES = ["▁th", "▁the", "th", "he", "▁", "t", "h", "e", "a", "é"]


@given(st.text(alphabet="thea é漢😀\n", max_size=20))
def test_sentencepiece_equals_the_tokenizer_json_of_the_same_vocabulary(text: str) -> None:
    metadata = spm_metadata(SPM_PIECES)
    merges = [("▁", "th"), ("▁th", "e"), ("▁t", "h"), ("t", "h"), ("h", "e")]
    source = document(
        metadata["tokens"],
        decoder=SPM,
        pre_tokenizer=None,
        normalizer={
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            ],
        },
        added_tokens=[added(index, metadata["tokens"][index]) for index in range(3)],
        model={
            "type": "BPE",
            "unk_token": "<unk>",
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {token: index for index, token in enumerate(metadata["tokens"])},
            "merges": [list(pair) for pair in merges if pair != ("▁t", "h")],
        },
    )
    rebuilt, reference = rebuild(**metadata), library(source)
    ids = rebuilt.encode(text, add_special_tokens=False)
    assert ids == reference.encode(text).ids
    assert rebuilt.decode(ids) == reference.decode(ids) == text


def test_sentencepiece_flags_and_defaults() -> None:
    pieces = ["▁", "a", "▁a"]
    with_prefix = rebuild(**spm_metadata(pieces))
    assert with_prefix.encode("a", add_special_tokens=True) == [1, 261]
    assert with_prefix.decode([261, 261]) == "a a"
    bare = rebuild(**spm_metadata(pieces, add_space_prefix=False, add_bos_token=False))
    assert bare.encode("a", add_special_tokens=True) == [260]
    assert bare.decode([261, 261]) == " a a"
    unnamed = spm_metadata(pieces)
    del unnamed["bos_token_id"]
    assert rebuild(**unnamed).bos_token_id == 1


def test_the_space_prefix_comes_before_each_stretch_between_special_tokens() -> None:
    tokenizer = rebuild(**spm_metadata(["▁", "a", "▁a"]))
    assert tokenizer.encode("a</s>a", add_special_tokens=False) == [261, 2, 261]


def test_unknown_characters_become_bytes_or_the_unknown_token() -> None:
    metadata = spm_metadata(["▁"], add_space_prefix=False)
    ids = rebuild(**metadata).encode("é", add_special_tokens=False)
    assert ids == [3 + byte for byte in "é".encode()]
    small = {"tokens": ["<unk>", "▁"], "token_type": [UNKNOWN, NORMAL], "scores": [0.0, 0.0]}
    without = rebuild(model="llama", add_bos_token=False, add_space_prefix=False, **small)
    assert without.encode("éé", add_special_tokens=False) == [0]


def test_user_defined_tokens_of_sentencepiece_are_found_as_they_are_spelled() -> None:
    metadata = spm_metadata(["▁", "a", "  "], add_space_prefix=False)
    metadata["token_type"][-1] = USER_DEFINED
    tokenizer = rebuild(**metadata)
    assert tokenizer.encode("a  a", add_special_tokens=False) == [260, 261, 260]
    assert tokenizer.decode([260, 261, 260]) == "a  a"


def test_unigram_takes_the_best_path() -> None:
    tokens = ["<pad>", "</s>", "<unk>", "▁", "a", "b", "ab", "▁a", "▁ab"]
    scores = [0.0, 0.0, 0.0, -2.0, -2.0, -2.0, -5.0, -1.0, -9.0]
    types = [CONTROL, CONTROL, UNKNOWN] + [NORMAL] * 6
    common = {"model": "t5", "tokens": tokens, "scores": scores, "token_type": types, "unknown_token_id": 2}
    tokenizer = rebuild(**common, add_space_prefix=True, add_eos_token=True, eos_token_id=1)
    names = [tokenizer.id_to_token(index) for index in tokenizer.encode("ab b", add_special_tokens=True)]
    assert names == ["▁a", "b", "▁", "b"]
    assert tokenizer.decode(tokenizer.encode("ab b", add_special_tokens=True)) == "ab b"
    tidy = rebuild(**common, add_space_prefix=True, remove_extra_whitespaces=True)
    assert tidy.decode(tidy.encode("  ab   b ", add_special_tokens=True)) == "ab b"
    bare = rebuild(**common)
    assert [bare.id_to_token(index) for index in bare.encode("ab", add_special_tokens=True)] == ["a", "b"]


# Refusals


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "bert"}, "gpt2 .*llama .*t5"),
        ({"model": None}, "tokenizer.ggml.model"),
        ({"pre": "kimi-k2"}, "'kimi-k2' is not supported; supported are .*llama-bpe.*qwen2.*smollm"),
        ({"pre": 7}, "tokenizer.ggml.pre"),
        ({"tokens": []}, "tokens is empty"),
        ({"tokens": "abc"}, "tokens must be a list"),
        ({"tokens": [1, 2]}, "tokens must be a list"),
        ({"tokens": ["a", "a"], "token_type": [1, 1], "merges": []}, "'a' appears twice, as ids 0 and 1"),
        ({"token_type": [1]}, "token_type has 1 entries for"),
        ({"token_type": ["x"]}, "token_type must be a list"),
        ({"merges": None}, "merges must be a list"),
        ({"merges": ["ab"]}, "entry 0, 'ab'"),
        ({"merges": ["no such"]}, "merges do not fit"),
        ({"eos_token_id": 10**6}, "eos_token_id is 1000000; the vocabulary has"),
        ({"eos_token_id": "x"}, "eos_token_id"),
        ({"add_bos_token": "yes"}, "add_bos_token must be true or false"),
        ({"model": "llama"}, "scores must be a list"),
        ({"model": "llama", "scores": [0.0]}, "scores has 1 entries"),
        ({"model": "t5", "scores": ["x"]}, "scores must be a list"),
    ],
)
def test_what_is_damaged_or_not_known_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        rebuild(**byte_level_metadata() | changes)


def test_a_damaged_character_map_is_refused() -> None:
    metadata = spm_metadata(["▁"], model="t5", precompiled_charsmap=[1, 2, 3])
    with pytest.raises(ModelError, match="precompiled_charsmap"):
        rebuild(**metadata)


def test_empty_tokens_get_a_name_of_their_own() -> None:
    tokens = [*ALPHABET, "", "x1", ""]
    tokens[-1] = "x2"
    tokenizer = rebuild(model="gpt2", pre="gpt-2", tokens=tokens, merges=[])
    assert tokenizer.id_to_token(256) == "[EMPTY_256]"


@pytest.mark.model
def test_smollm2_is_rebuilt_whole() -> None:
    prefix = "tokenizer.ggml."
    stored = read_gguf(smollm2_path()).metadata
    metadata = {key.removeprefix(prefix): value for key, value in stored.items() if key.startswith(prefix)}
    tokenizer = Tokenizer.from_assets(TextAssets(gguf_vocab=metadata), 49_152)
    pre_tokenizer = steps({"type": "Digits", "individual_digits": True}, byte_level(True))
    reference = library(as_tokenizer_json(metadata, pre_tokenizer))
    text = "The capital of France is Paris. 12345 naïve 漢字 😀\n\n\tdef f(x):\n    return x  # it's\n"
    for prompt in (text, "<|im_start|>user\n" + text + "<|im_end|>\n", ""):
        ids = tokenizer.encode(prompt, add_special_tokens=True)
        assert ids == reference.encode(prompt).ids
        assert tokenizer.decode(ids) == reference.decode(ids)
        assert tokenizer.decode(ids, skip_special_tokens=False) == prompt
    assert tokenizer.template_variables["bos_token"] == "<|im_start|>"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
