from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from itertools import pairwise
from typing import Any

import pytest
from engine_fakes import EOS, VOCAB_SIZE, StatRecorder, make_frontend
from hypothesis import given
from hypothesis import strategies as st

from rooftree.engine.input_processor import InputProcessor
from rooftree.engine.merging import merge
from rooftree.engine.messages import EngineCoreOutput, EngineCoreOutputs, SchedulerStats, TopLogprobs
from rooftree.engine.output_processor import OutputProcessor
from rooftree.engine.outputs import RequestOutput
from rooftree.errors import RequestError
from rooftree.sampling.params import SamplingParams

FRONTEND = make_frontend()


class Desk:
    """An OutputProcessor, its clock, and the news it delivered."""

    def __init__(self, frontend: Any = FRONTEND, **params: Any) -> None:
        self.now = 100.0
        self.stats = StatRecorder()
        self.books = OutputProcessor(frontend.tokenizer, self.stats, lambda: self.now)
        self.door = InputProcessor(
            frontend.tokenizer, vocab_size=VOCAB_SIZE, eos_token_ids=(EOS,), max_model_len=1000
        )
        self.news: list[RequestOutput] = []
        self.params = params
        self.core_ids: dict[str, list[str]] = {}

    def open(self, request_id: str = "r", prompt: Sequence[int] = (1, 2, 3), **params: Any) -> None:
        asked = self.door.process(request_id, list(prompt), SamplingParams(**self.params | params))
        self.books.add_request(asked, self.news.append, self.now)
        self.core_ids[request_id] = [choice.request_id for choice in asked.choices]

    def take(self, *outputs: EngineCoreOutput, scheduler: SchedulerStats | None = None) -> list[str]:
        return self.books.process(EngineCoreOutputs(list(outputs), scheduler))

    def out(self, index: int, tokens: Sequence[int], **fields: Any) -> EngineCoreOutput:
        """The core's news of one choice of the request ``r``."""
        return EngineCoreOutput(self.core_ids["r"][index], list(tokens), **fields)

    def say(self, tokens: Sequence[int], **fields: Any) -> list[str]:
        return self.take(self.out(0, tokens, **fields))

    def texts(self) -> list[str]:
        return [choice.text for output in self.news for choice in output.outputs]

    def whole(self) -> RequestOutput:
        total = RequestOutput("r", [], [])
        for output in self.news:
            merge(total, deepcopy(output))
        return total


def split(data: Sequence[int], cuts: Sequence[int]) -> list[list[int]]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [list(data[start:end]) for start, end in pairwise(places)]


def test_each_message_makes_one_delta_with_the_prompt_and_its_own_tokens():
    desk = Desk()
    desk.open()
    desk.say(b"h")
    desk.say(b"i", finish_reason="length", num_cached_tokens=2)
    first, last = desk.news
    assert first == RequestOutput("r", [1, 2, 3], [first.outputs[0]])
    assert (first.outputs[0].text, first.outputs[0].token_ids) == ("h", [ord("h")])
    assert first.outputs[0].finish_reason is None
    assert (last.finished, last.num_cached_tokens, last.outputs[0].finish_reason) == (True, 2, "length")


def test_a_character_over_several_tokens_comes_whole():
    desk = Desk()
    desk.open()
    for byte in "a😀b".encode():
        desk.say([byte])
    assert desk.texts() == ["a", "", "", "", "😀", "b"]


def test_an_unfinished_character_is_flushed_once_at_the_end():
    desk = Desk()
    desk.open()
    desk.say("😀".encode()[:2])
    desk.say("😀".encode()[2:3], finish_reason="length")
    assert desk.texts() == ["", "�"]


@given(cuts=st.lists(st.integers(0, 100)), stop=st.sampled_from(["END", "END!", "D b", "pha", "é😀", "zz"]))
def test_a_stop_string_is_found_over_every_cut(cuts: list[int], stop: str):
    text = "alpha END beta é😀!"
    desk = Desk(stop=(stop,))
    desk.open()
    aborts = []
    for piece in split(text.encode(), cuts):
        aborts += desk.say(piece)
    found = stop in text
    if not found:
        desk.say([], finish_reason="length")
    whole = desk.whole()
    assert whole.outputs[0].text == text.split(stop)[0]
    assert whole.outputs[0].finish_reason == ("stop" if found else "length")
    assert whole.outputs[0].stop_reason == (stop if found else None)
    assert aborts == (desk.core_ids["r"] if found else [])
    assert whole.finished


def test_tokens_behind_a_stop_string_are_dropped_and_later_messages_ignored():
    desk = Desk(stop=("b",))
    desk.open()
    desk.say(b"abc")
    desk.say(b"d")
    desk.say([], finish_reason="abort")
    (output,) = desk.news
    assert (output.outputs[0].text, output.outputs[0].token_ids) == ("a", list(b"ab"))
    assert desk.stats.total("num_generation_tokens") == 2


def test_a_stop_string_in_the_last_token_needs_no_abort():
    desk = Desk(stop=("b",))
    desk.open()
    assert desk.say(b"ab", finish_reason="length") == []
    assert desk.news[0].outputs[0].stop_reason == "b"


def test_held_back_text_comes_when_generation_ends_otherwise():
    for reason in ("length", "stop", "error"):
        desk = Desk(stop=("END!",))
        desk.open()
        desk.say(b"alpha EN")
        desk.say(b"D" if reason == "length" else [EOS] if reason == "stop" else [], finish_reason=reason)
        assert desk.whole().outputs[0].text == ("alpha END" if reason == "length" else "alpha EN")


def test_the_token_that_ends_an_answer_is_counted_but_not_shown():
    desk = Desk()
    desk.open()
    desk.say(b"a")
    desk.say(b".", finish_reason="stop", stop_reason=ord("."))
    choice = desk.whole().outputs[0]
    assert (choice.text, choice.token_ids, choice.stop_reason) == ("a", list(b"a."), ord("."))
    assert desk.stats.all("finished")[0].num_generation_tokens == 2


@pytest.mark.parametrize("min_tokens", range(8))
def test_a_stop_string_cannot_match_in_the_first_min_tokens(min_tokens: int):
    desk = Desk(stop=("xx",), min_tokens=min_tokens, max_tokens=20)
    desk.open()
    for token in b"axxbxxc":
        desk.say([token])
    text = desk.whole().outputs[0].text
    # A match must lie wholly behind the first min_tokens tokens.
    expected = "a" if min_tokens <= 1 else "axxb" if min_tokens <= 4 else "axxbxxc"
    assert text == expected
    assert sum(len(output.outputs[0].token_ids) for output in desk.news) > min_tokens - 1


def test_logprobs_have_names_and_bytes_that_join_to_the_text():
    desk = Desk(logprobs=2)
    desk.open()
    for token in [*"é😀x".encode(), EOS]:
        position = TopLogprobs(-0.5, 1, [token, 65], [-0.5, -1.5])
        desk.say([token], logprobs=[position], finish_reason="stop" if token == EOS else None)
    choice = desk.whole().outputs[0]
    assert b"".join(p.chosen.bytes for p in choice.logprobs).decode() == choice.text == "é😀x"
    assert len(choice.logprobs) == len(choice.token_ids) == 8
    assert choice.logprobs[0].chosen.token == "�"
    assert choice.logprobs[-1].chosen.token == "<|eos|>"
    assert [top.token for top in choice.logprobs[6].top] == ["x", "A"]
    assert [top.logprob for top in choice.logprobs[6].top] == [-0.5, -1.5]


def test_choices_end_each_in_its_own_way_and_the_request_with_the_last():
    desk = Desk(n=3)
    desk.open()
    desk.take(desk.out(0, [65], num_cached_tokens=2), desk.out(1, [66]))
    desk.take(desk.out(1, [67], finish_reason="length"), desk.out(2, [68]))
    desk.take(desk.out(2, [EOS], finish_reason="stop"))
    assert not desk.news[-1].finished
    desk.take(desk.out(0, [69], finish_reason="length"))
    assert [len(output.outputs) for output in desk.news] == [2, 2, 1, 1]
    assert desk.news[-1].finished
    whole = desk.whole()
    assert {c.index: (c.text, c.finish_reason) for c in whole.outputs} == {
        0: ("AE", "length"),
        1: ("BC", "length"),
        2: ("D", "stop"),
    }
    assert whole.num_cached_tokens == 2


def test_an_error_of_one_choice_is_told_and_the_others_go_on():
    desk = Desk(n=2)
    desk.open()
    desk.take(desk.out(0, [], finish_reason="error", error="not finite"))
    assert (desk.news[0].error, desk.news[0].finished) == ("not finite", False)
    desk.take(desk.out(1, [65], finish_reason="length"))
    assert desk.news[1].finished


def test_a_defect_in_one_request_costs_the_others_nothing(caplog: pytest.LogCaptureFixture):
    desk = Desk()
    desk.open()
    broken = desk.core_ids["r"][0]
    desk.open("other")
    healthy = desk.core_ids["other"][0]
    no_such_token = [10**9]
    aborts = desk.take(EngineCoreOutput(broken, no_such_token), EngineCoreOutput(healthy, [65]))
    assert aborts == [broken]
    assert desk.news[0].error
    assert desk.news[0].finished
    assert (desk.news[1].request_id, desk.news[1].outputs[0].text) == ("other", "A")
    assert "cannot be told" in caplog.text


def test_an_abort_ends_a_request_once_with_all_its_text():
    desk = Desk(n=2, stop=("END",))
    desk.open()
    desk.take(desk.out(0, list(b"aE")), desk.out(1, [65], finish_reason="length"))
    assert desk.books.abort("r", "shutting down") == desk.core_ids["r"][:1]
    assert desk.books.abort("r") == []
    desk.take(desk.out(0, [65]))
    last = desk.news[-1]
    assert (last.finished, last.error, last.outputs[0].finish_reason) == (True, "shutting down", "abort")
    assert desk.whole().outputs[0].text == "aE"
    assert desk.books.num_unfinished == 0
    assert desk.stats.finished_by_reason() == {"length": 1, "abort": 1}


def test_an_id_in_use_and_stop_strings_too_long_are_refused_and_leave_nothing():
    desk = Desk()
    desk.open("r")
    with pytest.raises(RequestError, match="in use"):
        desk.open("r")
    with pytest.raises(RequestError):
        desk.open("s", stop=("x" * 1_000_000,))
    assert desk.books.request_ids == ["r"]
    desk.say([65], finish_reason="length")
    desk.open("r")


def test_the_books_hold_times_and_totals():
    desk = Desk()
    desk.open(prompt=[1] * 10)
    desk.now = 102.0
    desk.say([65], queued_seconds=0.5, prefill_seconds=1.25, num_cached_tokens=4)
    desk.now = 103.0
    desk.say([66], num_cached_tokens=4, num_preemptions=1)
    desk.now = 106.0
    desk.say([67, 68], finish_reason="length", num_cached_tokens=4, num_preemptions=1)
    assert desk.stats.all("first_token_seconds") == [2.0]
    assert desk.stats.all("inter_token_seconds") == [1.0, 1.5, 1.5]
    assert desk.stats.total("num_prompt_tokens") == 10
    assert desk.stats.total("num_cached_tokens") == 4
    (finished,) = desk.stats.all("finished")
    assert (finished.queue_seconds, finished.prefill_seconds) == (0.5, 1.25)
    assert (finished.first_token_seconds, finished.decode_seconds, finished.e2e_seconds) == (2.0, 4.0, 6.0)
    assert (finished.num_generation_tokens, finished.num_preemptions) == (4, 1)
    assert (finished.num_prompt_tokens, finished.num_cached_tokens, finished.n) == (10, 4, 1)


def test_prompt_tokens_are_counted_once_and_only_with_a_first_token():
    desk = Desk(n=3)
    desk.open("r", prompt=[1] * 10)
    desk.open("gone", prompt=[1] * 7)
    desk.books.abort("gone")
    desk.take(desk.out(0, [65]), desk.out(1, [65]))
    desk.take(desk.out(2, [65]))
    assert desk.stats.total("num_prompt_tokens") == 10
    assert len(desk.stats.all("first_token_seconds")) == 3
    assert desk.stats.finished_by_reason() == {"abort": 3}


def test_the_engines_state_reaches_the_statistics():
    desk = Desk()
    desk.take(scheduler=SchedulerStats(num_running=3))
    assert desk.stats.records[-1].scheduler == SchedulerStats(num_running=3)


def test_a_failing_reader_of_statistics_fails_no_request(caplog: pytest.LogCaptureFixture):
    class Broken:
        def record(self, stats: object) -> None:
            raise ZeroDivisionError

    desk = Desk()
    desk.books = OutputProcessor(FRONTEND.tokenizer, Broken())
    desk.open()
    desk.say([65], finish_reason="length")
    assert desk.news[0].finished
    assert "statistics" in caplog.text


@given(st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=30), st.lists(st.integers(0, 30)))
def test_merged_deltas_are_the_whole_answer_however_they_were_cut(tokens: list[int], cuts: list[int]):
    desk = Desk()
    desk.open()
    for piece in split(tokens, cuts):
        desk.say(piece)
    desk.say([], finish_reason="length")
    alone = FRONTEND.tokenizer.decode(tokens)
    assert desk.whole().outputs[0].text == alone
    assert desk.whole().outputs[0].token_ids == tokens
