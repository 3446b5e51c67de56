from __future__ import annotations

import contextlib
from typing import Any

import pytest
from engine_fakes import EOS, VOCAB_SIZE, StatRecorder, foretell, make_llm, saying
from hypothesis import given, settings
from hypothesis import strategies as st

from rooftree.engine.config import EngineConfig
from rooftree.engine.input_processor import choice_seed
from rooftree.engine.llm import LLM
from rooftree.engine.merging import merge
from rooftree.engine.outputs import RequestOutput
from rooftree.errors import RequestError
from rooftree.sampling.params import SamplingParams

TEXT = "alpha END beta é😀 and 😀 more"


def greedy(max_tokens: int | None = 8, **params: Any) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, **params)


def assert_at_rest(llm: LLM) -> None:
    stats = llm.core.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_owned_blocks) == (0, 0, 0)
    assert llm.core.scheduler.check_conservation() == []
    assert not llm.core.has_unfinished_requests


def streamed(llm: LLM, prompt: Any, params: SamplingParams) -> RequestOutput:
    total = RequestOutput("", [], [])
    for delta in llm.stream(prompt, params):
        merge(total, delta)
    return total


def test_prompts_are_answered_in_their_order_together_and_as_alone():
    prompts = [[i + 1] * (7 * i + 1) for i in range(9)]
    llm = make_llm(EngineConfig(max_num_seqs=4, max_num_batched_tokens=9))
    together = llm.generate(prompts, greedy(12, ignore_eos=True))
    for prompt, output in zip(prompts, together, strict=True):
        (alone,) = make_llm().generate(prompt, greedy(12, ignore_eos=True))
        assert output.prompt_token_ids == prompt
        assert output.outputs == alone.outputs
        assert output.outputs[0].token_ids == foretell(prompt, 12)
        assert output.finished
    assert_at_rest(llm)


@pytest.mark.parametrize("prompts", [[1, [2, 3]], [[2, 3], 1], ["hello", 1], [1, "hello"], [1, None]])
def test_ids_mixed_with_prompts_are_refused_and_not_dropped(prompts: Any):
    llm = make_llm()
    with pytest.raises(RequestError, match=r"Token . of the prompt is"):
        llm.generate(prompts, greedy())
    assert_at_rest(llm)


def test_text_prompts_get_the_tokenizers_ids():
    (output,) = make_llm().generate("hello é", greedy(1))
    assert output.prompt_token_ids == make_llm().tokenizer.encode("hello é", add_special_tokens=True)


@pytest.mark.parametrize("max_tokens", range(1, len(TEXT.encode()) + 3))
@pytest.mark.parametrize("stop", [(), ("END",), ("END!",), ("é😀", "beta"), ("zzz",)])
def test_streamed_joined_equals_whole_for_every_length_and_stop(max_tokens: int, stop: tuple[str, ...]):
    params = greedy(max_tokens, stop=stop, logprobs=1)
    llm = make_llm(script=saying(TEXT))
    (whole,) = llm.generate([[1]], params)
    assert streamed(llm, [1], params).outputs == whole.outputs
    text = TEXT.encode()[:max_tokens].decode(errors="replace")
    found = [text.index(s) + len(s) for s in stop if s in text]
    if found:
        (first,) = (s for s in stop if s in text and text.index(s) + len(s) == min(found))
        text = text[: min(found) - len(first)]
        assert whole.outputs[0].stop_reason == first
    else:
        reason = "stop" if max_tokens > len(TEXT.encode()) else "length"
        assert (whole.outputs[0].finish_reason, whole.outputs[0].stop_reason) == (reason, None)
    assert whole.outputs[0].text == text
    assert_at_rest(llm)


def test_a_stop_string_cuts_the_same_text_whatever_the_tokens():
    for pieces in (["al", "pha E", "N", "D b", "eta"], ["alpha END beta"], ["alpha ", "END", " beta"]):
        extra = [piece for piece in pieces if len(piece) > 1]
        tokens = [260 + extra.index(piece) if piece in extra else ord(piece) for piece in pieces]
        llm = make_llm(script=saying(tokens), extra=extra)
        for max_tokens in range(1, len(pieces) + 1):
            (whole,) = llm.generate([[1]], greedy(max_tokens, stop=("END",)))
            full = "".join(pieces[:max_tokens])
            assert whole.outputs[0].text == full.split("END")[0]
            assert streamed(llm, [1], greedy(max_tokens, stop=("END",))).outputs == whole.outputs


def test_every_stopper_waits_for_min_tokens():
    answer = [*b"ab", EOS, *b"c", 258, *b"dXYef", EOS, *b"ghXY"] + [122] * 8
    stoppers: list[dict[str, Any]] = [
        {"stop": ("XY",), "ignore_eos": True},
        {"stop_token_ids": (99,), "ignore_eos": True},
        {},
    ]
    for stopper in stoppers:
        llm = make_llm(script=saying(answer))
        for min_tokens in range(13):
            (output,) = llm.generate([[1]], greedy(20, min_tokens=min_tokens, **stopper))
            assert len(output.outputs[0].token_ids) >= min_tokens
            if not stopper:
                assert EOS not in output.outputs[0].token_ids[:min_tokens]
        (output,) = llm.generate([[1]], greedy(20, **stopper))
        assert len(output.outputs[0].token_ids) < 12


def test_choices_are_distinct_repeatable_and_each_ends_by_itself():
    def script(tokens: list[int], seed: int) -> int:
        return EOS if len(tokens) > 4 + seed % 5 else 65 + seed % 20

    llm = make_llm(script=script)
    params = SamplingParams(n=4, seed=7, max_tokens=7)
    (first,) = llm.generate([[1, 2]], params)
    (second,) = llm.generate([[1, 2]], params)
    assert [choice.index for choice in first.outputs] == [0, 1, 2, 3]
    assert first.outputs == second.outputs
    seeds = [choice_seed(7, index) for index in range(4)]
    assert seeds[0] == 7
    for choice, seed in zip(first.outputs, seeds, strict=True):
        assert choice.token_ids[0] == 65 + seed % 20
        assert len(choice.token_ids) == min(7, 4 + seed % 5)
        assert choice.finish_reason == ("length" if seed % 5 == 4 else "stop")
    assert len({tuple(choice.token_ids) for choice in first.outputs}) > 1


def test_without_a_seed_requests_differ_and_with_one_they_do_not():
    llm = make_llm()
    free = llm.generate([[1]] * 8, SamplingParams(max_tokens=8, ignore_eos=True))
    assert len({tuple(output.outputs[0].token_ids) for output in free}) == 8
    fixed = llm.generate([[1]] * 8, SamplingParams(max_tokens=8, ignore_eos=True, seed=-3))
    assert len({tuple(output.outputs[0].token_ids) for output in fixed}) == 1


def test_a_cached_prompt_gives_the_same_answer_and_is_reported():
    llm = make_llm()
    for length in (15, 16, 17, 31, 32, 33):
        prompt = [length] * length
        first, second = (llm.generate([prompt], greedy(4))[0] for _ in range(2))
        assert first.outputs == second.outputs
        assert first.num_cached_tokens == 0
        assert second.num_cached_tokens == (length - 1) // 16 * 16
    stats = llm.core.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (2 * 144, 16 + 16 + 16 + 32)


@pytest.mark.parametrize("room", [-1, 0, 1, 2])
def test_the_edge_of_the_context_window(room: int):
    llm = make_llm(max_model_len=64)
    prompt = [1] * (64 - room)
    if room < 1:
        with pytest.raises(RequestError, match="64"):
            llm.generate([prompt], greedy(None))
        return
    (whole,) = llm.generate([prompt], greedy(None, ignore_eos=True))
    assert (len(whole.outputs[0].token_ids), whole.outputs[0].finish_reason) == (room, "length")
    with pytest.raises(RequestError) as caught:
        llm.generate([prompt], greedy(room + 1))
    assert caught.value.param == "max_tokens"
    assert_at_rest(llm)


def test_a_salt_too_long_is_refused():
    llm = make_llm()
    with pytest.raises(RequestError, match="cache_salt has 1025 characters; possible: at most 1024"):
        llm.generate([[1]], greedy(), cache_salt="x" * 1025)
    assert llm.generate([[1]], greedy(2), cache_salt="x" * 1024)[0].finished
    assert_at_rest(llm)


def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized(monkeypatch: pytest.MonkeyPatch):
    llm = make_llm(max_model_len=64)
    bound = llm.tokenizer.length_bound
    assert bound is not None
    largest = "a" * 63 * bound.longest  # may be 63 tokens, for all that is known
    with pytest.raises(RequestError, match="The prompt has"):
        llm.generate([largest])
    encode = llm.tokenizer.encode
    monkeypatch.setattr(llm.tokenizer, "encode", lambda *a, **k: pytest.fail("it was tokenized"))
    with pytest.raises(RequestError) as caught:
        llm.generate([[1], largest + "a"])
    assert caught.value.message == (
        f"prompt has {len(largest) + 1} characters, which are 64 tokens at least (no token of this model "
        f"stands for more than {bound.longest}), but the context window is 64 tokens, prompt and answer "
        f"together: shorten it."
    )
    assert (caught.value.param, caught.value.code) == ("prompt", "context_length_exceeded")
    monkeypatch.setattr(llm.tokenizer, "encode", encode)
    assert llm.generate(["hi"], greedy(2))[0].finished
    assert_at_rest(llm)


def test_one_refusal_refuses_the_whole_call_before_anything_runs():
    llm = make_llm()
    with pytest.raises(RequestError, match=f"{VOCAB_SIZE - 1}"):
        llm.generate([[1], [VOCAB_SIZE]], greedy())
    with pytest.raises(RequestError, match="2 prompts came with 1"):
        llm.generate([[1], [2]], [greedy()])
    with pytest.raises(RequestError, match="priority"):
        llm.generate([[1]], greedy(), priority=1)
    assert llm.core.stats().steps.num_steps == 0
    assert_at_rest(llm)


def test_refusals_at_the_door_leave_the_engine_answering():
    llm = make_llm()
    bad: list[tuple[Any, SamplingParams]] = [
        ([], greedy()),
        ("\ud800", greedy()),
        ([-1], greedy()),
        ([1.5], greedy()),
        ([1], greedy(0)),
        ([1], SamplingParams(temperature=float("nan"))),
        ([1], greedy(stop=("",))),
        ([1], greedy(4, min_tokens=5)),
        ([1], greedy(stop_token_ids=(VOCAB_SIZE,))),
        ([1], greedy(logit_bias={-1: 1.0})),
        ([1], greedy(n=0)),
    ]
    for prompt, params in bad:
        with pytest.raises(RequestError):
            llm.stream(prompt, params)
        (good,) = llm.generate([[1]], greedy(3, ignore_eos=True))
        assert good.outputs[0].token_ids == foretell([1], 3)
    assert_at_rest(llm)


def test_closing_a_stream_ends_its_request():
    llm = make_llm()
    stream = llm.stream([1], greedy(400, ignore_eos=True))
    next(stream)
    assert llm.core.stats().num_running == 1
    stream.close()
    assert_at_rest(llm)


def test_an_interrupt_ends_all_requests():
    llm = make_llm()

    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        llm.generate([[1], [2]], [greedy(1), greedy(400, ignore_eos=True)], on_progress=interrupt)
    assert_at_rest(llm)
    assert llm.generate([[1]], greedy(3, ignore_eos=True))[0].outputs[0].token_ids == foretell([1], 3)


def test_progress_counts_requests():
    seen: list[tuple[int, int]] = []
    make_llm().generate(
        [[1], [2], [3]], greedy(3), on_progress=lambda done, total: seen.append((done, total))
    )
    assert seen[-1] == (3, 3)
    assert seen == sorted(seen)


def test_a_failed_request_says_so_and_the_others_answer():
    llm = make_llm()
    llm.core.executor.poisoned.add("1.0:1")
    outputs = llm.generate([[1], [2], [3]], greedy(3, ignore_eos=True))
    assert outputs[1].error == "logits are not finite"
    assert outputs[1].outputs[0].finish_reason == "error"
    assert [output.outputs[0].token_ids for output in outputs[::2]] == [foretell([1], 3), foretell([3], 3)]


def test_close_closes_the_executor():
    with make_llm() as llm:
        assert not llm.core.executor.closed
    assert llm.core.executor.closed


def test_numbers_too_large_for_the_wire_pass_the_door_as_what_they_mean():
    llm = make_llm()
    (output,) = llm.generate([[1]], SamplingParams(max_tokens=2, top_k=2**80, temperature=0.0))
    assert len(output.outputs[0].token_ids) == 2
    request = llm._door.process("r", [1], SamplingParams(top_k=2**80, seed=-(2**63)))
    assert request.choices[0].params.top_k == VOCAB_SIZE
    assert request.choices[0].seed == 2**63


def test_statistics_add_up_to_the_script():
    stats = StatRecorder()
    config = EngineConfig(max_num_seqs=4, max_num_batched_tokens=32, kv_watermark=0.0)
    llm = make_llm(config, num_blocks=8, max_model_len=128, stat_logger=stats)
    answers = llm.generate([[i] * 20 for i in range(1, 10)], greedy(60, ignore_eos=True))
    (several,) = llm.generate([[1] * 20], SamplingParams(n=3, seed=1, max_tokens=5, ignore_eos=True))
    for _ in range(3):
        stream = llm.stream([2] * 20, greedy(60, ignore_eos=True))
        next(stream)
        stream.close()
    assert stats.finished_by_reason() == {"length": 12, "abort": 3}
    assert len(stats.all("first_token_seconds")) == 15
    assert stats.total("num_prompt_tokens") == 20 * 13
    tokens = sum(len(c.token_ids) for output in [*answers, several] for c in output.outputs)
    assert stats.total("num_generation_tokens") == tokens + 3
    assert len(stats.all("inter_token_seconds")) == tokens + 3 - 15
    state = llm.core.stats()
    assert state.num_preemptions > 0
    assert sum(request.num_preemptions for request in stats.all("finished")) == state.num_preemptions
    assert state.prefix_cache_queries == 20 * 15
    assert stats.total("num_cached_tokens") <= state.prefix_cache_hits
    assert_at_rest(llm)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 30), st.integers(0, 40)), min_size=1, max_size=8)
)
def test_streams_read_and_left_at_any_moment_change_no_other(plans: list[tuple[int, int, int]]):
    llm = make_llm(EngineConfig(max_num_seqs=3, max_num_batched_tokens=16), num_blocks=12, max_model_len=100)
    streams = [llm.stream([n % 3] * n, greedy(m, ignore_eos=True)) for n, m, _ in plans]
    got: list[list[int]] = [[] for _ in plans]
    for round_ in range(41):
        for index, (_, _, reads) in enumerate(plans):
            if round_ == reads:
                streams[index].close()
            elif round_ < reads:
                with contextlib.suppress(StopIteration):
                    got[index] += next(streams[index]).outputs[0].token_ids
    for (n, m, _), tokens in zip(plans, got, strict=True):
        assert tokens == foretell([n % 3] * n, m)[: len(tokens)]
    assert_at_rest(llm)
