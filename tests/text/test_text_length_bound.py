"""A text's fewest tokens, told without tokenizing it: never more than it really has."""

from __future__ import annotations

import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_rigs import (
    BYTE_LEVEL,
    METASPACE,
    SPM_BYTES,
    byte_level_document,
    document,
    load,
    spm_document,
)

from rigs.real_model import smollm2_path
from rigs.tokenizer import ALPHABET
from rooftree.checkpoint.open import open_checkpoint
from rooftree.text.tokenizer import Tokenizer

SPLIT = {"type": "Split", "pattern": {"Regex": "\\s+"}, "behavior": "Isolated", "invert": False}
SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
PAIRS = [("a", "a"), ("aa", "aa"), ("Ġ", "Ġ"), ("ĠĠ", "ĠĠ")]


def merging(pre_tokenizer: Any = BYTE_LEVEL, **parts: Any) -> bytes:
    """A byte-level vocabulary in which runs of the letter a and of spaces merge."""
    tokens = [*ALPHABET, *(first + second for first, second in PAIRS)]
    return document(tokens, merges=PAIRS, pre_tokenizer=pre_tokenizer, **parts)


def normalized(*steps: dict[str, Any]) -> bytes:
    return merging(normalizer={"type": "Sequence", "normalizers": list(steps)})


BOUNDED = {
    "byte-level": merging(),
    "split": merging({"type": "Sequence", "pretokenizers": [SPLIT, BYTE_LEVEL | {"use_regex": False}]}),
    "byte-level normalizer": merging(None, normalizer={"type": "ByteLevel"}),
    "composing": normalized({"type": "NFC"}),
    "compatible": normalized({"type": "NFKC"}),
    "decomposing": normalized({"type": "NFD"}, {"type": "Lowercase"}),
    "replacing": normalized({"type": "Replace", "pattern": {"String": "aaa"}, "content": "b"}),
    "without some control characters": document([each for each in ALPHABET if each != ALPHABET[4]]),
    "specials": byte_level_document(["ab"], specials=["<|a long special token|>"]),
    "sentencepiece": spm_document(["▁", "a", "▁a"]),
    "metaspace": document([*SPM_BYTES, "▁", "a"], pre_tokenizer=METASPACE, normalizer=SPACES),
    "one unknown each": document(["<unk>", "a"], pre_tokenizer=None),
}
TEXTS = st.text(alphabet=st.sampled_from("aab  \n<|>é漢😀ᾂ\u03b1\u0313\u0300\u0345ﬁ\x04"), max_size=60)


def bounded(what: str) -> Tokenizer:
    raw = BOUNDED[what]
    if what in ("metaspace", "sentencepiece"):
        raw = raw.replace(b'"type": "BPE"', b'"type": "BPE", "byte_fallback": true')
    if what == "one unknown each":
        raw = raw.replace(b'"type": "BPE"', b'"type": "BPE", "unk_token": "<unk>"')
    return load(raw)


@pytest.mark.parametrize("what", BOUNDED)
def test_a_text_never_has_fewer_tokens_than_it_was_said_to_have(what: str) -> None:
    tokenizer = bounded(what)
    bound = tokenizer.length_bound
    assert bound is not None

    @given(TEXTS)
    def check(text: str) -> None:
        assert bound.fewest_tokens(text) <= len(tokenizer.encode(text, add_special_tokens=False))

    check()
    for text in ("a", " ", "aaa", "\u03b1\u0313\u0300\u0345", "<|a long special token|>", "a\x04"):
        tokens = len(tokenizer.encode(text * 100, add_special_tokens=False))
        assert 0 < bound.fewest_tokens(text * 100) <= tokens


WITHOUT_LIMIT = {
    "spaces at the ends go": normalized({"type": "Strip", "strip_left": True, "strip_right": True}),
    "a pattern may match anything": normalized(
        {"type": "Replace", "pattern": {"Regex": "a+"}, "content": "a"}
    ),
    "a text becomes nothing": normalized({"type": "Replace", "pattern": {"String": "a"}, "content": ""}),
    "spaces between words go": merging({"type": "Whitespace"}),
    "what separates goes": merging(SPLIT | {"behavior": "Removed"}),
    "characters are dropped": document(["a"], pre_tokenizer=None),
    "bytes are dropped": document(["a"]),
    "a continuation byte is dropped": document([each for each in ALPHABET if each != ALPHABET[0x80]]),
    "unknown stretches become one": document(["<unk>", "a"], pre_tokenizer=None),
    "spaces beside a special token go": byte_level_document().replace(
        b'"added_tokens": []',
        b'"added_tokens": [%s]' % b'{"id": 256, "content": "<s>", "special": true, '
        b'"single_word": false, "lstrip": false, "rstrip": true, "normalized": false}',
    ),
}


@pytest.mark.parametrize("what", WITHOUT_LIMIT)
def test_where_any_length_of_text_may_vanish_nothing_is_claimed(what: str) -> None:
    raw = WITHOUT_LIMIT[what]
    if what == "unknown stretches become one":
        raw = raw.replace(b'"type": "BPE"', b'"type": "BPE", "unk_token": "<unk>", "fuse_unk": true')
    assert load(raw, 300).length_bound is None


def test_a_word_list_has_no_limit() -> None:
    model = {"type": "WordLevel", "vocab": {"<unk>": 0, "a": 1}, "unk_token": "<unk>"}
    assert load(document([], pre_tokenizer=None, model=model)).length_bound is None


def test_no_character_is_composed_of_more_than_four() -> None:
    def composed(character: str) -> bool:
        return unicodedata.normalize("NFC", unicodedata.normalize("NFD", character)) == character

    everything = (chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)
    assert max(len(unicodedata.normalize("NFD", each)) for each in everything if composed(each)) == 4


@pytest.mark.model
def test_the_real_models_longest_token() -> None:
    checkpoint = open_checkpoint(str(smollm2_path()))
    tokenizer = Tokenizer.from_assets(checkpoint.text, checkpoint.spec.vocab_size)
    bound = tokenizer.length_bound
    assert bound is not None
    assert bound.longest == 81
    assert bound.fewest_tokens("x" * 8192 * 81) == 8192
    # It has no token for some control characters.
    assert tokenizer.encode("\x04" * 10**4, add_special_tokens=False) == []
    assert bound.fewest_tokens("\x04" * 10**4) == 0
