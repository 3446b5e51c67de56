"""The step plan: order, budget, admission, and how requests end."""

from __future__ import annotations

import pytest
from scheduler_rig import GREEDY, Rig, solo

from rooftree.errors import ConfigError, RequestError
from rooftree.sampling.params import SamplingParams
from rooftree.scheduler.admission import validate_capacity
from rooftree.scheduler.config import SchedulerConfig
from rooftree.scheduler.output import ModelRunnerOutput, TokenLogprobs
from rooftree.scheduler.request import Request, RequestStatus


def test_nothing_to_do_is_none() -> None:
    rig = Rig()
    assert rig.scheduler.schedule() is None
    assert not rig.scheduler.has_unfinished


def test_a_request_is_a_prompt_and_then_decodes() -> None:
    rig = Rig()
    request = rig.add("a", 10, max_tokens=3)
    expected = solo(request)
    assert [rig.step() for _ in range(4)] == [{"a": 10}, {"a": 1}, {"a": 1}, {}]
    assert (rig.output("a"), rig.ends("a")) == (expected[0], ["length"])
    assert request.status is RequestStatus.FINISHED_LENGTH_CAPPED


def test_a_long_prompt_is_computed_in_chunks() -> None:
    rig = Rig(max_num_seqs=2, max_num_batched_tokens=4)
    expected, _ = solo(rig.add("a", 10, max_tokens=2))
    assert [rig.step() for _ in range(4)] == [{"a": 4}, {"a": 4}, {"a": 2}, {"a": 1}]
    assert rig.output("a") == expected


def test_a_step_tells_the_executor_all_it_needs() -> None:
    rig = Rig(max_num_batched_tokens=8)
    params = SamplingParams(min_tokens=1, seed=5)
    request = rig.add("a", 10, params=params, seed=77, eos_token_ids=(3,))
    first, second = rig.scheduler.schedule(), None
    assert first is not None
    rig.scheduler.update_from_output(first, rig.model.execute(first))
    second = rig.scheduler.schedule()
    assert second is not None
    [a], [b] = first.requests, second.requests
    assert (a.start, a.num_tokens, a.samples, b.start, b.num_tokens, b.samples) == (0, 8, False, 8, 2, True)
    assert (b.request_id, b.num_prompt_tokens, b.params, b.seed, b.banned_token_ids) == (
        "a",
        10,
        params,
        77,
        (3,),
    )
    assert b.token_ids is request.token_ids
    assert b.block_ids is rig.kv_cache.block_ids("a")


def test_decodes_go_first_and_prompts_take_what_is_left() -> None:
    rig = Rig(max_num_seqs=4, max_num_batched_tokens=6)
    rig.add("a", 3, max_tokens=9)
    rig.add("b", 20)
    assert rig.step() == {"a": 3, "b": 3}
    rig.add("c", 2)
    assert [rig.step() for _ in range(3)] == [{"a": 1, "b": 5}] * 3
    assert list(rig.step().items()) == [("a", 1), ("b", 2), ("c", 2)]


def test_a_decode_passes_a_prompt_that_came_before_it() -> None:
    rig = Rig(max_num_seqs=4, max_num_batched_tokens=8)
    rig.add("long", 14, max_tokens=2)
    rig.add("short", 2, max_tokens=9)
    assert rig.step() == {"long": 8}
    assert list(rig.step()) == ["long", "short"]
    rig.add("new", 30)
    rig.step()
    rig.step()
    assert list(rig.step()) == ["short", "new"]


def test_seats_are_limited() -> None:
    rig = Rig(max_num_seqs=2)
    for name in "abc":
        rig.add(name, 4, max_tokens=2)
    assert list(rig.step()) == ["a", "b"]
    assert (rig.scheduler.stats().num_running, rig.scheduler.stats().num_waiting) == (2, 1)
    rig.step()
    assert list(rig.step()) == ["c"]


def test_nobody_overtakes_the_first_in_the_queue() -> None:
    rig = Rig(num_blocks=8, block_size=4)
    rig.add("running", 14, max_tokens=6)
    rig.step()
    rig.add("large", 20, max_tokens=4)
    rig.add("small", 2, max_tokens=1)
    for _ in range(5):
        assert list(rig.step()) == ["running"]
    assert list(rig.step()) == ["large", "small"]


def test_priority_orders_the_queue_but_takes_no_seat_away() -> None:
    rig = Rig(max_num_seqs=1, policy="priority")
    rig.add("running", 4, max_tokens=3, priority=5)
    rig.step()
    for name, priority in [("late", 1), ("urgent", -1), ("normal", 0)]:
        rig.add(name, 4, max_tokens=1, priority=priority)
    rig.drain()
    order = [u.request_id for u in rig.updates if u.finish_reason]
    assert order == ["running", "urgent", "normal", "late"]


def test_the_watermark_keeps_room_for_those_running() -> None:
    rig = Rig(num_blocks=10, block_size=4, watermark=0.2)
    rig.add("a", 23, max_tokens=8)
    rig.add("b", 9, max_tokens=3)
    assert list(rig.step()) == ["a"]
    rig.drain()
    assert rig.scheduler.stats().num_preemptions == 0
    small = Rig(num_blocks=10, block_size=4, watermark=0.2)
    small.add("a", 23, max_tokens=8)
    small.add("b", 8, max_tokens=3)
    assert list(small.step()) == ["a", "b"]


def test_an_idle_engine_admits_whatever_fits() -> None:
    rig = Rig(num_blocks=10, block_size=4, watermark=0.9)
    rig.add("a", 39, max_tokens=1)
    rig.add("b", 39, max_tokens=1)
    assert rig.drain() == 2


def test_a_planned_step_that_never_ran_is_planned_again() -> None:
    rig = Rig(max_num_batched_tokens=8)
    rig.add("a", 20)
    assert rig.plan() == rig.plan() == {"a": 8}
    assert rig.scheduler.check_conservation() == []
    assert [rig.step() for _ in range(3)] == [{"a": 8}, {"a": 8}, {"a": 4}]


def test_cached_prefixes_are_reported_and_not_computed() -> None:
    """Case 08 at this floor: same tokens as before, hits reported, at most all prompt tokens but one."""
    for length in (3, 4, 5, 7, 8, 9):
        rig = Rig(block_size=4)
        prompt = list(range(length))
        hit = (length - 1) // 4 * 4
        for i in range(3):
            rig.add(f"r{i}", prompt.copy(), max_tokens=3)
            assert rig.step() == {f"r{i}": length - (hit if i else 0)}
            rig.drain()
        assert rig.output("r0") == rig.output("r1") == rig.output("r2")
        assert {u.request_id: u.num_cached_tokens for u in rig.updates} == {"r0": 0, "r1": hit, "r2": hit}
        stats = rig.scheduler.stats()
        assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (3 * length, 2 * hit)


def test_without_prefix_caching_nothing_is_looked_up() -> None:
    rig = Rig(enable_prefix_caching=False)
    for i in range(2):
        rig.add(f"r{i}", list(range(9)))
        rig.drain()
    stats = rig.scheduler.stats()
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits, stats.num_cached_blocks) == (0, 0, 0)


def test_times_come_with_the_first_token() -> None:
    rig = Rig(max_num_seqs=1, max_num_batched_tokens=6)
    rig.add("a", 9, max_tokens=2)
    rig.clock.now = 2.0
    rig.step()
    rig.clock.now = 5.0
    rig.step()
    rig.clock.now = 9.0
    rig.step()
    assert [(u.queued_seconds, u.prefill_seconds) for u in rig.updates] == [(2.0, 3.0), (None, None)]


def test_logprobs_pass_through() -> None:
    rig = Rig()
    rig.add("a", 3)
    output = rig.scheduler.schedule()
    assert output is not None
    logprobs = TokenLogprobs(-0.5, 1, [7], [-0.5])
    [update] = rig.scheduler.update_from_output(output, ModelRunnerOutput({"a": 7}, {"a": logprobs}))
    assert update.logprobs is logprobs


# --- ends


def test_abort_while_waiting_running_and_after_the_end() -> None:
    rig = Rig(max_num_seqs=1)
    running, waiting = rig.add("running", 4), rig.add("waiting", 4)
    rig.step()
    for request in (running, waiting):
        update = rig.scheduler.abort(request.request_id)
        assert update is not None
        assert (update.finish_reason, update.new_token_ids) == ("abort", [])
        assert request.status is RequestStatus.FINISHED_ABORTED
        assert rig.scheduler.abort(request.request_id) is None
    assert rig.scheduler.abort("never seen") is None
    assert rig.scheduler.schedule() is None
    assert rig.kv_cache.pool.num_owned == 0


def test_output_for_an_ended_request_is_ignored() -> None:
    rig = Rig()
    rig.add("a", 4)
    expected, _ = solo(rig.add("b", 4))
    output = rig.scheduler.schedule()
    assert output is not None
    result = rig.model.execute(output)
    rig.scheduler.abort("a")
    updates = rig.scheduler.update_from_output(output, result)
    assert [u.request_id for u in updates] == ["b"]
    assert updates[0].new_token_ids == expected[:1]
    assert rig.scheduler.check_conservation() == []


def test_output_of_an_aborted_request_does_not_reach_its_namesake() -> None:
    rig = Rig()
    rig.add("a", [1, 2, 3])
    output = rig.scheduler.schedule()
    assert output is not None
    result = rig.model.execute(output)
    rig.scheduler.abort("a")
    successor = rig.add("a", [4, 5, 6, 7, 8], max_tokens=3)
    expected = solo(successor)
    assert rig.scheduler.update_from_output(output, result) == []
    assert successor.num_computed_tokens == 0
    rig.drain()
    assert (rig.output("a"), rig.ends("a")) == (expected[0], [expected[1]])


def test_finish_is_idempotent() -> None:
    rig = Rig()
    request = rig.add("a", 4)
    rig.step()
    rig.scheduler.finish(request, RequestStatus.FINISHED_ERROR)
    rig.scheduler.finish(request, RequestStatus.FINISHED_ABORTED)
    assert request.status is RequestStatus.FINISHED_ERROR
    assert rig.scheduler.check_conservation() == []


def test_an_error_ends_one_request_and_publishes_nothing_of_the_step() -> None:
    rig = Rig(block_size=4)
    rig.add("bad", list(range(9)))
    expected, _ = solo(rig.add("good", 4))
    output = rig.scheduler.schedule()
    assert output is not None
    result = rig.model.execute(output)
    failed = ModelRunnerOutput(
        {"good": result.sampled_token_ids["good"]}, errors={"bad": "logits are not finite"}
    )
    bad, good = rig.scheduler.update_from_output(output, failed)
    assert (bad.request_id, bad.finish_reason, bad.error) == ("bad", "error", "logits are not finite")
    assert (good.finish_reason, good.new_token_ids) == (None, expected[:1])
    rig.drain()
    rig.add("again", list(range(9)))
    assert rig.step() == {"again": 9}


# --- the door


def test_case_09_a_request_larger_than_the_pool_is_refused_and_others_run() -> None:
    rig = Rig(num_blocks=32, block_size=16, max_model_len=2048, max_num_seqs=16, max_num_batched_tokens=512)
    for prompt, max_tokens in [(600, 1), (400, 400), (511, 2)]:
        with pytest.raises(RequestError, match=r"holds 512 \(32 blocks of 16\)") as refused:
            rig.add("large", prompt, max_tokens=max_tokens)
        assert f"{prompt + max_tokens} tokens" in str(refused.value)
        assert (refused.value.status, refused.value.code) == (400, "context_length_exceeded")
    rig.add("full", 400, max_tokens=112)
    for i in range(10):
        rig.add(f"r{i}", 20, max_tokens=4)
    rig.drain(max_steps=130)
    assert rig.ends("full") == ["length"]
    assert len(rig.output("full")) == 112
    stats = rig.scheduler.stats()
    assert (stats.num_running, stats.num_waiting, stats.num_owned_blocks) == (0, 0, 0)


@pytest.mark.parametrize(("prompt", "max_tokens", "param"), [(512, 1, "prompt"), (511, 2, "max_tokens")])
def test_capacity_names_the_field_at_fault(prompt: int, max_tokens: int, param: str) -> None:
    with pytest.raises(RequestError) as refused:
        validate_capacity(prompt, max_tokens, 32, 16)
    assert refused.value.param == param
    validate_capacity(511, 1, 32, 16)


def test_what_could_never_run_is_refused_and_leaves_no_trace() -> None:
    rig = Rig(max_model_len=20)
    rig.add("a", 10)
    for options, message in [
        ({"request_id": "a", "prompt": 3}, "in use"),
        (
            {"request_id": "b", "prompt": 17},
            "17 prompt tokens and max_tokens=4 exceed the context window of 20",
        ),
        ({"request_id": "b", "prompt": []}, "must be positive"),
        ({"request_id": "b", "prompt": 3, "max_tokens": 0}, "must be positive"),
        ({"request_id": "b", "prompt": 3, "priority": 1}, "--scheduling-policy priority"),
    ]:
        with pytest.raises(RequestError, match=message):
            rig.add(**options)
    assert list(rig.scheduler.requests) == ["a"]
    rig.add("b", 16)
    rig.drain()
    assert rig.ends("a") == rig.ends("b") == ["length"]


def test_the_context_window_ends_generation() -> None:
    """max_tokens is resolved against the window, so this is the second lock on the door."""
    rig = Rig(max_model_len=12)
    request = Request(request_id="a", token_ids=list(range(8)), params=GREEDY, max_tokens=4, seed=0)
    rig.scheduler.add_request(request)
    request.max_tokens = 1000
    rig.drain()
    assert (len(request.token_ids), rig.ends("a")) == (12, ["length"])


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"max_num_seqs": 0}, "--max-num-seqs must be at least 1, not 0"),
        ({"max_model_len": -1}, "--max-model-len"),
        ({"max_num_batched_tokens": 3}, "--max-num-batched-tokens 3 is less than --max-num-seqs 4"),
    ],
)
def test_contradicting_limits_are_refused(limits: dict[str, int], message: str) -> None:
    good = {"max_num_seqs": 4, "max_num_batched_tokens": 8, "max_model_len": 100}
    SchedulerConfig(**good)
    with pytest.raises(ConfigError, match=message):
        SchedulerConfig(**(good | limits))


def shortage(rig: Rig) -> str | None:
    """What the next step lacks; the step is then run."""
    planned = rig.scheduler.schedule()
    assert planned is not None
    rig.scheduler.update_from_output(planned, rig.model.execute(planned))
    return planned.shortage


def test_a_step_says_what_kept_a_request_waiting() -> None:
    seats = Rig(max_num_seqs=1)
    seats.add("a", 4, max_tokens=2)
    assert shortage(seats) is None
    seats.add("b", 4)
    assert shortage(seats) == "seats"
    tokens = Rig(max_num_seqs=4, max_num_batched_tokens=8)
    tokens.add("a", 8)
    tokens.add("b", 8)
    assert shortage(tokens) == "tokens"
    assert shortage(tokens) is None
    blocks = Rig(num_blocks=4, block_size=4)
    blocks.add("a", 12, max_tokens=2)
    blocks.add("b", 12, max_tokens=2)
    assert shortage(blocks) == "blocks"


def test_a_prompt_without_a_token_of_the_budget_lacks_tokens() -> None:
    rig = Rig(max_num_seqs=4, max_num_batched_tokens=4)
    rig.add("a", 3, max_tokens=9)
    rig.add("b", 8, max_tokens=9)
    rig.add("c", 1, max_tokens=9)
    assert [shortage(rig) for _ in range(3)] == ["tokens", "tokens", "tokens"]
    assert shortage(rig) is None


def test_a_step_for_which_a_request_gave_way_lacks_blocks() -> None:
    rig = Rig(num_blocks=4, block_size=4, watermark=0.0)
    rig.add("a", 7, max_tokens=8)
    rig.add("b", 7, max_tokens=8)
    before, seen = 0, []
    while rig.scheduler.has_unfinished:
        lacked = shortage(rig)
        preemptions = rig.scheduler.stats().num_preemptions
        seen.append((preemptions > before, lacked))
        before = preemptions
    assert (True, "blocks") in seen
    assert (True, None) not in seen
