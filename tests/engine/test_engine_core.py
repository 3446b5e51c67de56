from __future__ import annotations

import msgspec
import pytest
from engine_fakes import core_request, foretell, joined, make_core, run_core
from hypothesis import given, settings
from hypothesis import strategies as st

from rooftree.engine.config import EngineConfig
from rooftree.engine.messages import EngineCoreOutputs, SchedulerStats


def free_blocks(stats: SchedulerStats) -> int:
    return stats.num_free_blocks + stats.num_cached_blocks


def test_a_request_gets_the_tokens_of_its_own_prompt_and_ends_once():
    core = make_core()
    core.add_request(core_request("a", [1, 2, 3], 5))
    news = run_core(core)["a"]
    assert joined(news) == foretell([1, 2, 3], 5)
    assert [output.finish_reason for output in news] == [None] * 4 + ["length"]
    assert core.stats().num_owned_blocks == 0


def test_the_first_token_brings_the_engines_own_times():
    core = make_core()
    core.add_request(core_request("a", [1], 2))
    first, second = run_core(core)["a"]
    assert first.queued_seconds is not None
    assert first.prefill_seconds is not None
    assert second.queued_seconds is None


@pytest.mark.parametrize("budget", [4, 5, 7, 16, 64, 512])
@pytest.mark.parametrize("num_blocks", [8, 12, 64])
def test_batch_chunks_and_preemption_change_no_token(budget: int, num_blocks: int):
    config = EngineConfig(max_num_seqs=4, max_num_batched_tokens=budget, kv_watermark=0.0)
    core = make_core(config, num_blocks=num_blocks, max_model_len=128)
    prompts = {f"r{i}": [i % 3] * (11 * i % 40 + 1) for i in range(9)}
    for request_id, prompt in prompts.items():
        core.add_request(core_request(request_id, prompt, 40))
    news = run_core(core)
    for request_id, prompt in prompts.items():
        assert joined(news[request_id]) == foretell(prompt, 40)
    if num_blocks == 8:
        assert core.stats().num_preemptions > 0
    assert free_blocks(core.stats()) == num_blocks


def test_end_of_sequence_and_stop_tokens_end_an_answer():
    answer = foretell([5], 20)
    core = make_core()
    core.add_request(core_request("eos", [5], 20, eos=(answer[3],)))
    core.add_request(core_request("stop", [5], 20, stop_token_ids=(answer[3],)))
    core.add_request(core_request("ignored", [5], 20, eos=(answer[3],), ignore_eos=True))
    news = run_core(core)
    first = answer.index(answer[3]) + 1
    assert joined(news["eos"]) == joined(news["stop"]) == answer[:first]
    assert (news["eos"][-1].finish_reason, news["eos"][-1].stop_reason) == ("stop", None)
    assert (news["stop"][-1].finish_reason, news["stop"][-1].stop_reason) == ("stop", answer[3])
    assert joined(news["ignored"]) == answer


def test_logprobs_travel_with_their_tokens():
    core = make_core()
    core.add_request(core_request("a", [1, 2], 3, logprobs=2))
    core.add_request(core_request("b", [1, 2], 3))
    news = run_core(core)
    for output in news["a"]:
        (logprobs,) = output.logprobs
        assert logprobs.top_ids[0] == output.new_token_ids[0]
        assert len(logprobs.top_logprobs) == 2
    assert all(output.logprobs is None for output in news["b"])


def test_logits_that_are_not_finite_end_that_request_only():
    core = make_core()
    core.add_request(core_request("good", [1, 2, 3], 6))
    core.add_request(core_request("bad", [4, 5, 6], 6))
    core.step()
    core.executor.poisoned.add("bad")
    news = run_core(core)
    (last,) = news["bad"]
    assert (last.finish_reason, last.error) == ("error", "logits are not finite")
    assert joined(news["good"]) == foretell([1, 2, 3], 6)[1:]
    assert core.stats().num_owned_blocks == 0


def test_a_request_that_can_never_run_ends_with_an_error_and_others_go_on():
    core = make_core(num_blocks=4, max_model_len=512)
    core.add_request(core_request("huge", [1] * 100, 10))
    core.add_request(core_request("fine", [1], 4))
    core.add_request(core_request("fine", [2], 4))
    news = run_core(core)
    (last,) = news["huge"]
    assert last.finish_reason == "error"
    assert "64" in last.error
    assert [output.finish_reason for output in news["fine"]].count("error") == 1
    assert joined(news["fine"]) == foretell([1], 4)


def test_a_refusal_alone_is_told_too():
    core = make_core(num_blocks=1, max_model_len=512)
    core.add_request(core_request("huge", [1] * 100, 10))
    assert core.has_unfinished_requests
    assert run_core(core)["huge"][0].finish_reason == "error"


def test_the_prompt_of_the_caller_is_left_alone():
    prompt = [1, 2, 3]
    core = make_core()
    core.add_request(core_request("a", prompt, 5))
    run_core(core)
    assert prompt == [1, 2, 3]


def test_an_abort_frees_everything_and_is_not_told():
    core = make_core()
    core.add_request(core_request("running", [1, 2, 3], 400))
    core.step()
    core.add_request(core_request("waiting", [1, 2, 3], 400))
    core.abort_requests(["running", "waiting", "unknown", "running"])
    assert core.step().outputs == []
    assert not core.has_unfinished_requests
    assert core.stats().num_owned_blocks == 0


def test_an_idle_step_tells_the_state():
    core = make_core()
    for _ in range(2):
        assert core.step() == EngineCoreOutputs([], SchedulerStats(num_free_blocks=64, num_total_blocks=64))


def test_the_record_of_a_step_keeps_contexts_apart():
    core = make_core(EngineConfig(max_num_seqs=4, max_num_batched_tokens=8))
    core.add_request(core_request("a", list(range(1, 7)), 4))
    core.add_request(core_request("b", list(range(1, 11)), 4))
    core.step()
    core.step()
    record = core.last_step
    assert (record.num_requests, record.num_tokens, record.num_prefill_tokens) == (2, 8, 7)
    assert record.num_outputs == 1  # the other prompt has one token to go
    assert record.windows == (None,)
    assert record.decode_context == (7,)
    assert (record.prefill_pairs, record.prefill_reads) == ((sum(range(3, 10)),), (9,))
    assert record.seconds > 0
    totals = core.stats().steps
    assert (totals.num_steps, totals.num_tokens, totals.num_requests) == (2, 16, 4)
    assert totals.seconds >= record.seconds


def test_a_leak_is_counted_when_the_engine_comes_to_rest():
    core = make_core()
    core.add_request(core_request("a", [1], 2))
    run_core(core)
    assert core.step().stats.conservation_failures == 0
    core.add_request(core_request("b", [1], 2))
    run_core(core)
    core.scheduler.kv_cache.pool.allocate(1)
    assert core.step().stats.conservation_failures > 0


def test_counters_never_fall_and_blocks_always_add_up():
    core = make_core(EngineConfig(max_num_seqs=3, max_num_batched_tokens=16, kv_watermark=0.0), num_blocks=6)
    for i in range(8):
        core.add_request(core_request(str(i), [i] * 20, 30))
    before = core.stats()
    while core.has_unfinished_requests:
        now = core.step().stats
        for counter in ("num_preemptions", "prefix_cache_queries"):
            assert getattr(now, counter) >= getattr(before, counter)
        assert min(msgspec.structs.astuple(now.steps.since(before.steps))) >= 0
        assert free_blocks(now) + now.num_owned_blocks == now.num_total_blocks
        before = now
    assert before.prefix_cache_queries == 8 * 20


events = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 60), st.integers(1, 40)),
        st.tuples(st.just("abort"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("step"), st.integers(1, 6), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(events=events, num_blocks=st.integers(7, 20), budget=st.integers(3, 40))
def test_aborts_at_any_moment_leave_the_others_whole_and_nothing_behind(events, num_blocks: int, budget: int):
    config = EngineConfig(max_num_seqs=3, max_num_batched_tokens=budget)
    core = make_core(config, num_blocks=num_blocks, max_model_len=100)
    asked: dict[str, tuple[list[int], int]] = {}
    aborted: set[str] = set()
    news: dict[str, list] = {}

    def step() -> None:
        for output in core.step().outputs:
            assert output.request_id not in aborted
            news.setdefault(output.request_id, []).append(output)
        assert core.scheduler.check_conservation() == []

    for kind, first, second in events:
        if kind == "add":
            request_id = str(len(asked))
            asked[request_id] = ([first % 5] * first, second)
            core.add_request(core_request(request_id, *asked[request_id]))
        elif kind == "abort":
            core.abort_requests([str(first)])
            if str(first) in asked:
                aborted.add(str(first))
        else:
            for _ in range(first):
                step()
    while core.has_unfinished_requests:
        step()
    for request_id, (prompt, max_tokens) in asked.items():
        if request_id not in aborted:
            assert joined(news[request_id]) == foretell(prompt, max_tokens)
            assert [output.finish_reason for output in news[request_id]].count("length") == 1
    assert core.stats().num_owned_blocks == 0
