"""Tokens to text, at every split."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from text_rigs import (
    METASPACE,
    SPM,
    byte_level,
    byte_level_document,
    document,
    id_of,
    library,
    load,
    spm_document,
)

from rooftree.errors import ModelError
from rooftree.text.detokenizer import IncrementalDetokenizer
from rooftree.text.pieces import rules_of_decoder
from rooftree.text.tokenizer import Tokenizer


def deltas(tokenizer: Tokenizer, ids: list[int], **options: bool) -> list[str]:
    """What a stream shows, the flush last."""
    stream = IncrementalDetokenizer(tokenizer, **options)
    return [*(stream.push(token_id) for token_id in ids), stream.flush()]


# Every kind of byte sequence: whole characters, cut ones, overlong forms, surrogates, stray bytes.
raw_pieces = st.lists(
    st.one_of(
        st.binary(min_size=1, max_size=4),
        st.text(min_size=1, max_size=2).map(lambda text: text.encode("utf-8", "surrogatepass")),
        st.sampled_from(
            [b"\xf0\x9f", b"\x98\x80", b"\xed\xa0", b"\xc0", b" \xe4", b"\xf4\x90\x80\x80", b"\xef\xbf\xbd"]
        ),
    ),
    min_size=1,
    max_size=12,
)


@given(raw_pieces)
def test_stream_equals_all_bytes_decoded_at_once_whatever_the_cuts(pieces: list[bytes]) -> None:
    tokenizer = byte_level(pieces)
    by_bytes = {tokenizer.token_bytes(index): index for index in range(tokenizer.vocab_size)}
    ids = [by_bytes[piece] for piece in pieces]
    for count in range(len(ids) + 1):
        shown = deltas(tokenizer, ids[:count])
        whole = b"".join(pieces[:count]).decode("utf-8", "replace")
        assert "".join(shown) == whole == tokenizer.decode(ids[:count])
        assert all("\ufffd" not in delta for delta in shown) or "\ufffd" in whole


@given(raw_pieces)
def test_byte_level_agrees_with_the_library_even_on_invalid_bytes(pieces: list[bytes]) -> None:
    source = byte_level_document(pieces)
    tokenizer = load(source)
    by_bytes = {tokenizer.token_bytes(index): index for index in range(tokenizer.vocab_size)}
    ids = [by_bytes[piece] for piece in pieces]
    assert tokenizer.decode(ids) == library(source).decode(ids)


@pytest.mark.parametrize("cuts", [(1,), (2,), (3,), (1, 2), (1, 3), (2, 3), (1, 2, 3)])
@pytest.mark.parametrize("character", ["😀", "漢"])
def test_a_cut_character_appears_once_it_is_whole(character: str, cuts: tuple[int, ...]) -> None:
    raw = character.encode()
    bounds = [0, *(cut for cut in cuts if cut < len(raw)), len(raw)]
    parts = [raw[a:b] for a, b in pairwise(bounds)]
    tokenizer = byte_level([*parts, b"x" + raw[:1]])
    ids = [id_of(tokenizer, part) for part in parts]
    assert deltas(tokenizer, ids) == [""] * (len(ids) - 1) + [character, ""]


def test_a_token_of_a_space_and_a_first_byte_shows_its_space_at_once() -> None:
    raw = "漢".encode()
    tokenizer = byte_level([b" " + raw[:1], raw[1:]])
    ids = [id_of(tokenizer, b" " + raw[:1]), id_of(tokenizer, raw[1:])]
    assert deltas(tokenizer, ids) == [" ", "漢", ""]
    assert deltas(tokenizer, ids[:1]) == [" ", "\ufffd"]


def test_an_unfinished_tail_is_flushed_once() -> None:
    tokenizer = byte_level([b"\xf0\x9f\x98"])
    stream = IncrementalDetokenizer(tokenizer)
    assert stream.push(id_of(tokenizer, b"\xf0\x9f\x98")) == ""
    assert [stream.flush(), stream.flush()] == ["\ufffd", ""]


def test_a_tail_that_turns_out_invalid_is_replaced_where_it_stands() -> None:
    tokenizer = byte_level([b"\xe6\xbc", b"ab"])
    ids = [id_of(tokenizer, b"\xe6\xbc"), id_of(tokenizer, b"ab")]
    assert deltas(tokenizer, ids) == ["", "\ufffdab", ""]


def test_two_streams_share_no_state() -> None:
    raw = "😀".encode()
    tokenizer = byte_level([raw[:2], raw[2:], "é".encode()])
    head, tail, other = (id_of(tokenizer, piece) for piece in (raw[:2], raw[2:], "é"))
    one, two = IncrementalDetokenizer(tokenizer), IncrementalDetokenizer(tokenizer)
    assert [one.push(head), two.push(other), two.push(head), one.push(tail), two.push(tail)] == [
        "",
        "é",
        "",
        "😀",
        "😀",
    ]


def test_special_tokens_vanish_and_the_bytes_around_them_meet() -> None:
    raw = "é".encode()
    source = byte_level_document([raw[:1], raw[1:]], specials=["<|end|>"])
    tokenizer = load(source)
    end = tokenizer.special_token_ids["<|end|>"]
    ids = [id_of(tokenizer, raw[:1]), end, id_of(tokenizer, raw[1:])]
    assert tokenizer.decode(ids) == library(source).decode(ids) == "é"
    assert "".join(deltas(tokenizer, ids, skip_special_tokens=False)) == "\ufffd<|end|>\ufffd"
    assert library(source).decode(ids, skip_special_tokens=False) == "\ufffd<|end|>\ufffd"


SPM_PIECES = ["▁", "▁Hello", "Hello", "▁▁", "▁▁x", ",", "world", "▁world", "é", "<0x0A>x", "▁a▁b"]


@pytest.mark.parametrize(
    "decoder", [SPM, {"type": "Sequence", "decoders": SPM["decoders"][:3]}, METASPACE, None]
)
@given(data=st.data())
def test_sentencepiece_styles_agree_with_the_library(
    decoder: dict[str, object] | None, data: st.DataObject
) -> None:
    source = spm_document(SPM_PIECES, decoder=decoder)
    tokenizer, reference = load(source), library(source)
    names = data.draw(
        st.lists(st.sampled_from([*SPM_PIECES, "<0x0A>", "<0x20>", "<0x41>", "<s>"]), max_size=8)
    )
    ids = [reference.token_to_id(name) for name in names]
    for skip in (True, False):
        assert "".join(deltas(tokenizer, ids, skip_special_tokens=skip)) == reference.decode(
            ids, skip_special_tokens=skip
        )


@given(st.text(alphabet="aé漢😀 ", max_size=6), st.binary(max_size=3))
def test_byte_fallback_agrees_with_the_library_on_whole_characters(text: str, junk: bytes) -> None:
    source = spm_document(["▁"])
    tokenizer = load(source)
    ids = [3 + byte for byte in text.encode()]
    assert tokenizer.decode(ids) == library(source).decode(ids)
    # On junk the library replaces every byte of the run, whole characters too; here they stay readable.
    ids = [3 + byte for byte in b"x" + text.encode() + junk]
    assert tokenizer.decode(ids) == (b"x" + text.encode() + junk).decode("utf-8", "replace")


def test_a_text_that_continues_another_keeps_its_first_space() -> None:
    for decoder in (SPM, METASPACE):
        tokenizer = load(spm_document(SPM_PIECES, decoder=decoder))
        (token_id,) = (i for i in range(tokenizer.vocab_size) if tokenizer.id_to_token(i) == "▁Hello")
        assert "".join(deltas(tokenizer, [token_id])) == "Hello"
        assert "".join(deltas(tokenizer, [token_id], at_start=False)) == " Hello"
        assert "".join(deltas(tokenizer, [token_id, token_id])) == "Hello Hello"


def test_padding_ids_contribute_nothing_and_do_not_begin_a_text() -> None:
    source = spm_document(SPM_PIECES, decoder=METASPACE)
    tokenizer = load(source, 400)
    hello = library(source).token_to_id("▁Hello")
    assert tokenizer.token_bytes(399) == b""
    assert tokenizer.decode([399, hello, 398]) == "Hello"


@pytest.mark.parametrize(
    ("decoder", "name"),
    [
        ({"type": "WordPiece", "prefix": "##", "cleanup": True}, "WordPiece"),
        ({"type": "BPEDecoder", "suffix": "</w>"}, "BPEDecoder"),
        ({"type": "Replace", "pattern": {"Regex": "a+"}, "content": "b"}, "Replace"),
        ({"type": "Strip", "content": " ", "start": 1, "stop": 0}, "Strip"),
        ({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]}, "ByteFallback"),
        (
            {
                "type": "Sequence",
                "decoders": [{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 0, "stop": 1}],
            },
            "Strip",
        ),
    ],
)
def test_a_decoder_that_cannot_stream_is_refused_by_name(decoder: dict[str, object], name: str) -> None:
    with pytest.raises(ModelError, match=name):
        load(document(["a"], decoder=decoder))


def test_a_token_outside_the_byte_alphabet_stands_for_itself() -> None:
    rules = rules_of_decoder(b'{"type":"ByteLevel"}')
    assert rules.piece("<｜end▁of▁text｜>") == "<｜end▁of▁text｜>".encode()
    assert rules.piece("Ġé") == b" \xe9"
