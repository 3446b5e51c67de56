"""Stop strings, against a naive search, at every split."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rooftree.errors import RequestError
from rooftree.text.stop_matcher import MAX_STOP_CHARACTERS, StopMatcher, StopStrings

letters = st.text(alphabet="ab", max_size=12)
stop_sets = st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=4)


def naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    """First completed occurrence, the longest of those that end together."""
    found = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    end, _, stop = min(found)
    return text[: end - len(stop)], stop


def held_back(text: str, stops: list[str]) -> str:
    """The longest end of the text that begins a stop string."""
    ends = (text[start:] for start in range(len(text)))
    return next((end for end in ends if any(stop.startswith(end) for stop in stops)), "")


@given(st.lists(letters, max_size=6), stop_sets)
@example(["abc", "d"], ["abcd", "bc"])
@example(["aaab"], ["aab", "ab"])
@example(["aba", "bab"], ["abab"])
def test_same_as_a_search_of_the_whole_text_whatever_the_chunks(chunks: list[str], stops: list[str]) -> None:
    matcher = StopMatcher(StopStrings(stops))
    shown, matched = "", None
    for index, chunk in enumerate(chunks):
        delta, matched = matcher.push(chunk)
        shown += delta
        if matched is None:
            so_far = "".join(chunks[: index + 1])
            assert shown + held_back(so_far, stops) == so_far, "exactly what may become a stop is held back"
    if matched is None:
        shown += matcher.flush()
    assert (shown, matched) == naive("".join(chunks), stops)


@given(letters, st.text(alphabet="ab", min_size=1, max_size=4))
def test_with_one_stop_string_the_answer_is_split_at_it(text: str, stop: str) -> None:
    matcher = StopMatcher(StopStrings([stop]))
    shown = "".join([matcher.push(character)[0] for character in text]) + matcher.flush()
    assert shown == text.split(stop)[0]


def test_a_stop_over_three_pieces_does_not_leak() -> None:
    matcher = StopMatcher(StopStrings(["END"]))
    pushed = [matcher.push(piece) for piece in ("al", "pha E", "N", "D b", "eta")]
    assert pushed == [("al", None), ("pha ", None), ("", None), ("", "END"), ("", "END")]
    assert matcher.flush() == ""


def test_text_held_back_for_a_stop_that_never_comes_is_kept() -> None:
    matcher = StopMatcher(StopStrings(["END!"]))
    assert "".join([matcher.push(piece)[0] for piece in ("al", "pha E", "N")]) == "alpha "
    assert [matcher.flush(), matcher.flush()] == ["EN", ""]


def test_the_match_that_ends_first_wins_and_of_two_that_end_together_the_longer() -> None:
    assert StopMatcher(StopStrings(["abcd", "bc"])).push("xabcd") == ("xa", "bc")
    assert StopMatcher(StopStrings(["bc", "abc"])).push("xabc") == ("x", "abc")


def test_characters_of_several_bytes_and_stops_longer_than_the_text() -> None:
    assert StopMatcher(StopStrings(["漢😀"])).push("x漢😀y") == ("x", "漢😀")
    matcher = StopMatcher(StopStrings(["a" * 100]))
    assert matcher.push("aaa") == ("", None)
    assert matcher.flush() == "aaa"


def naive_with_gaps(chunks: list[tuple[str, bool]], stops: list[str]) -> tuple[str, str | None]:
    """A match may lie only within neighbouring chunks that may stop."""
    shown = stretch = ""
    for chunk, may_stop in chunks:
        if may_stop:
            stretch += chunk
            before, matched = naive(stretch, stops)
            if matched:
                return shown + before, matched
        else:
            shown, stretch = shown + stretch + chunk, ""
    return shown + stretch, None


@given(st.lists(st.tuples(letters, st.booleans()), max_size=6), stop_sets)
def test_text_that_may_not_stop_is_shown_at_once_and_is_no_part_of_a_match(
    chunks: list[tuple[str, bool]], stops: list[str]
) -> None:
    matcher = StopMatcher(StopStrings(stops))
    shown, matched = "", None
    for index, (chunk, may_stop) in enumerate(chunks):
        delta, matched = matcher.push(chunk, may_stop=may_stop)
        shown += delta
        if matched is None and not may_stop:
            assert shown == "".join(text for text, _ in chunks[: index + 1])
    assert (shown + matcher.flush(), matched) == naive_with_gaps(chunks, stops)


def test_a_stop_begun_before_min_tokens_does_not_match() -> None:
    matcher = StopMatcher(StopStrings(["END"]))
    assert matcher.push("EN", may_stop=False) == ("EN", None)
    assert matcher.push("D, then END") == ("D, then ", "END")


def test_stops_that_are_impossible_are_refused() -> None:
    with pytest.raises(RequestError, match="empty") as refusal:
        StopStrings(["a", ""])
    assert (refusal.value.status, refusal.value.param) == (400, "stop")
    with pytest.raises(RequestError, match=str(MAX_STOP_CHARACTERS)):
        StopStrings(["a" * MAX_STOP_CHARACTERS, "b"])


def test_the_longest_stop_possible() -> None:
    stop = "a" * (MAX_STOP_CHARACTERS - 1) + "b"
    matcher = StopMatcher(StopStrings([stop]))
    shown = "".join([matcher.push("a")[0] for _ in range(2 * MAX_STOP_CHARACTERS)])
    assert shown + matcher.flush() == "a" * (2 * MAX_STOP_CHARACTERS)


def test_matchers_share_stop_strings_and_nothing_else() -> None:
    stops = StopStrings(["END"])
    one, other = StopMatcher(stops), StopMatcher(stops)
    assert one.push("aEN") == ("a", None)
    assert other.push("D") == ("D", None)
    assert one.push("D") == ("", "END")
    assert other.push("D") == ("D", None)
