"""Tokens to shown text, through the detokenizer and the stop strings together (cases 01, 02)."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from text_rigs import byte_level, id_of

from rooftree.text.stop_matcher import StopStrings
from rooftree.text.stream import TextStream

TEXT = "alpha END beta 😀漢 omega"


@given(
    cuts=st.sets(st.integers(1, len(TEXT.encode()) - 1)),
    stops=st.sampled_from([["END"], ["漢"], ["😀漢", "x"], ["meg"]]),
)
def test_stream_is_the_text_before_the_stop_for_every_cut_and_length(
    cuts: set[int], stops: list[str]
) -> None:
    raw = TEXT.encode()
    bounds = [0, *sorted(cuts), len(raw)]
    pieces = [raw[a:b] for a, b in pairwise(bounds)]
    tokenizer = byte_level(pieces)
    ids = [id_of(tokenizer, piece) for piece in pieces]
    for max_tokens in range(1, len(ids) + 1):
        stream = TextStream(tokenizer, StopStrings(stops))
        shown, matched = "", None
        for token_id in ids[:max_tokens]:
            delta, matched = stream.push([token_id])
            shown += delta
            if matched:
                break
        shown += stream.finish()
        full = tokenizer.decode(ids[:max_tokens])
        assert shown == full.split(stops[0])[0]
        assert matched == (stops[0] if stops[0] in full else None)
        whole = TextStream(tokenizer, StopStrings(stops))
        assert whole.push(ids[:max_tokens])[0] + whole.finish() == shown


def test_case_02_first_run() -> None:
    pieces = ["al", "pha E", "N", "D b", "eta"]
    tokenizer = byte_level(pieces)
    stream = TextStream(tokenizer, StopStrings(["END"]))
    assert [stream.push([id_of(tokenizer, piece)]) for piece in pieces] == [
        ("al", None),
        ("pha ", None),
        ("", None),
        ("", "END"),
        ("", "END"),
    ]
    assert stream.finish() == ""


def test_case_02_second_run() -> None:
    tokenizer = byte_level(["al", "pha E", "N"])
    stream = TextStream(tokenizer, StopStrings(["END!"]))
    shown = "".join([stream.push([id_of(tokenizer, piece)])[0] for piece in ("al", "pha E", "N")])
    assert (shown, stream.finish(), stream.finish()) == ("alpha ", "EN", "")


def test_both_tails_are_flushed_in_order() -> None:
    tokenizer = byte_level([b"E", b"\xf0\x9f"])
    stream = TextStream(tokenizer, StopStrings(["END"]))
    assert stream.push([id_of(tokenizer, b"E"), id_of(tokenizer, b"\xf0\x9f")]) == ("", None)
    assert [stream.finish(), stream.finish()] == ["E\ufffd", ""]


def test_tokens_before_min_tokens_are_no_part_of_a_match() -> None:
    tokenizer = byte_level(["EN", "D", "END", "x"])
    stream = TextStream(tokenizer, StopStrings(["END"]))
    ids = [id_of(tokenizer, piece) for piece in ("END", "EN", "D", "x", "END")]
    shown = [stream.push([token_id], may_stop=index >= 2) for index, token_id in enumerate(ids)]
    assert shown == [("END", None), ("EN", None), ("D", None), ("x", None), ("", "END")]


def test_a_character_completed_after_min_tokens_may_stop() -> None:
    raw = "漢".encode()
    tokenizer = byte_level([raw[:1], raw[1:]])
    stream = TextStream(tokenizer, StopStrings(["漢"]))
    assert stream.push([id_of(tokenizer, raw[:1])], may_stop=False) == ("", None)
    assert stream.push([id_of(tokenizer, raw[1:])]) == ("", "漢")


def test_without_stops_nothing_is_held() -> None:
    tokenizer = byte_level(["ab"])
    stream = TextStream(tokenizer)
    assert stream.push([id_of(tokenizer, "ab")]) == ("ab", None)
    assert stream.finish() == ""
