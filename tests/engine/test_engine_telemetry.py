"""Each step held against the cost model: sums, limits, and seconds that add up."""

from __future__ import annotations

from typing import Any

import pytest
from engine_fakes import core_request, make_core
from hypothesis import given
from hypothesis import strategies as st

from rooftree.engine.config import EngineConfig
from rooftree.engine.messages import StepTotals
from rooftree.engine.telemetry import MOST_NOTED, MOST_SECONDS, SLACK, Telemetry, attribute, step_batch
from rooftree.roofline.batch import Batch, RequestTokens, Window, batch_of
from rooftree.roofline.clock import StepEstimate
from rooftree.sampling.params import SamplingParams
from rooftree.scheduler.output import ScheduledRequest, SchedulerOutput

GREEDY = SamplingParams(temperature=0.0)


def scheduled(new: int, start: int = 0, samples: bool = True) -> ScheduledRequest:
    return ScheduledRequest("r", [], 1, start, new, [], samples, GREEDY, 0)


def estimate(seconds: float = 1.0, limit: Any = "bandwidth") -> StepEstimate:
    return StepEstimate(seconds, 100.0, 40.0, 0.5 * seconds, 0.25 * seconds, limit)


class FixedClock:
    """Predicts what it is told, in turn; remembers the batches."""

    def __init__(self, *estimates: StepEstimate) -> None:
        self.estimates = list(estimates)
        self.batches: list[Batch] = []

    def estimate(self, batch: Batch) -> StepEstimate:
        self.batches.append(batch)
        return self.estimates[(len(self.batches) - 1) % len(self.estimates)]


requests = st.lists(st.tuples(st.integers(1, 600), st.integers(0, 5000), st.booleans()), min_size=1)
windows = st.lists(st.sampled_from([None, 1, 7, 128, 4096]), min_size=1, unique=True)


@given(requests, windows)
def test_the_sums_of_a_step_are_those_of_the_cost_model(asked: list[Any], sizes: list[int | None]) -> None:
    seen = tuple(Window(size) for size in sizes)
    batch, prefill = step_batch([scheduled(*request) for request in asked], seen)
    expected = batch_of(
        [RequestTokens(new, start, outputs=int(samples)) for new, start, samples in asked], seen
    )
    assert batch == expected
    assert prefill == sum(new for new, _, _ in asked if new > 1)


@pytest.mark.parametrize(
    ("native", "limit", "shortage", "bound", "host"),
    [
        (0.9, "bandwidth", None, "bandwidth", 0.1),
        (0.9, "arithmetic", None, "arithmetic", 0.1),
        (0.9, "overhead", None, "host", 0.1),
        (0.9, "interconnect", None, "host", 0.1),
        (0.9, "bandwidth", "seats", "queue", 0.1),
        (0.9, "overhead", "tokens", "queue", 0.1),
        (0.9, "arithmetic", "seats", "arithmetic", 0.1),
        (0.9, "bandwidth", "blocks", "kv_capacity", 0.1),
        (0.9, "arithmetic", "blocks", "kv_capacity", 0.1),
        (0.0, "bandwidth", None, "bandwidth", 1.0),
        (1.2, "bandwidth", None, "bandwidth", 0.0),
    ],
)
def test_a_step_has_one_limit_besides_the_host(
    native: float, limit: str, shortage: Any, bound: str, host: float
) -> None:
    assert attribute(1.0, native, estimate(1.0, limit), shortage) == (bound, pytest.approx(host))


def test_kernels_far_slower_than_predicted_are_the_hosts_matter() -> None:
    assert attribute(1.0, 1.0, estimate(0.7), None) == ("bandwidth", 0.0)
    assert attribute(1.0, 1.0, estimate(0.2), None) == ("bandwidth", pytest.approx(1.0 - SLACK * 0.2))


steps = st.lists(
    st.tuples(
        st.floats(0, 10),  # gap before
        st.floats(0, 10, allow_subnormal=False),  # the step
        st.floats(0, 12),  # in kernels
        st.floats(0, 10),  # predicted
        st.sampled_from(["bandwidth", "arithmetic", "overhead"]),
        st.sampled_from([None, "blocks", "seats", "tokens"]),
        st.booleans(),  # work is left
    )
)


@given(steps, st.booleans())
def test_seconds_under_all_limits_add_up_to_the_busy_time(timeline: list[Any], modelled: bool) -> None:
    clock = FixedClock(*(estimate(predicted, limit) for _, _, _, predicted, limit, _, _ in timeline))
    telemetry = Telemetry(clock if modelled else None)
    now, busy, before, busy_before = 0.0, 0.0, StepTotals(), False
    for gap, seconds, native, _, _, shortage, goes_on in timeline:
        now += gap
        busy += seconds + (gap if busy_before else 0.0)
        planned = SchedulerOutput([scheduled(1, 3)], {"r": 1}, 1, shortage)
        telemetry.note(planned, now, now + seconds, native, goes_on=goes_on)
        now += seconds
        busy_before = goes_on
        telemetry.settle()
        totals = telemetry.totals
        assert all(value >= 0 for value in totals.since(before).by_limit().values())
        before = totals
    assert before.busy_seconds == pytest.approx(busy, abs=1e-6)
    assert before.busy_seconds >= before.seconds - 1e-6


def test_rest_is_no_gap() -> None:
    telemetry = Telemetry()
    planned = SchedulerOutput([scheduled(1)], {"r": 1}, 1)
    telemetry.note(planned, 0.0, 1.0, 0.5, goes_on=True)
    telemetry.rest()
    telemetry.note(planned, 100.0, 101.0, 0.5, goes_on=False)
    assert telemetry.totals.busy_seconds == 2.0


def test_a_record_tells_fractions_and_the_limit_of_most_of_the_step() -> None:
    telemetry = Telemetry(FixedClock(estimate(1.0)), epoch=1000.0)
    planned = SchedulerOutput([scheduled(1, 9), scheduled(5, 2, False)], {"a": 1, "b": 5}, 6)
    telemetry.note(planned, 4.0, 6.0, 1.25, goes_on=False)
    record = telemetry.last_step
    assert record is not None
    assert (record.at, record.seconds, record.native_seconds, record.predicted_seconds) == (1004, 2, 1.25, 1)
    assert (record.num_requests, record.num_tokens, record.num_outputs) == (2, 6, 1)
    assert (record.bytes, record.flop) == (100, 40)
    assert (record.bandwidth_fraction, record.arithmetic_fraction) == (0.25, 0.125)
    assert record.bound == "bandwidth"
    telemetry.note(planned, 6.0, 8.0, 0.5, goes_on=False)
    assert telemetry.last_step is not None
    assert telemetry.last_step.bound == "host"
    totals = telemetry.totals
    assert (totals.num_steps, totals.num_requests, totals.batch_size) == (2, 4, 2)
    assert (totals.bandwidth_fraction, totals.arithmetic_fraction) == (0.25, 0.125)
    assert totals.predicted_step_seconds == 1


def test_totals_that_were_handed_out_stay_as_they_are() -> None:
    telemetry = Telemetry()
    first = telemetry.totals
    telemetry.note(SchedulerOutput([scheduled(1)], {"r": 1}, 1), 0.0, 1.0, 0.5, goes_on=False)
    assert first == StepTotals()
    assert telemetry.totals.since(first) == telemetry.totals


@given(steps, st.integers(1, 40))
def test_steps_add_up_the_same_however_they_are_grouped(timeline: list[Any], stride: int) -> None:
    together, apart = Telemetry(), Telemetry()
    now = 0.0
    for index, (gap, seconds, native, _, _, shortage, goes_on) in enumerate(timeline * 9):
        now += gap
        planned = SchedulerOutput([scheduled(1, 3)], {"r": 1}, 1, shortage)
        for telemetry in (together, apart):
            telemetry.note(planned, now, now + seconds, native, goes_on=goes_on)
        now += seconds
        if index % stride == 0:
            apart.settle()
    assert together.last_step == apart.last_step
    assert together.totals == apart.totals


def test_steps_do_not_wait_long_to_be_counted() -> None:
    planned = SchedulerOutput([scheduled(1)], {"r": 1}, 1)
    many, slow = Telemetry(), Telemetry()
    for index in range(MOST_NOTED):
        assert many.totals.num_steps == 0
        many.note(planned, index * 1e-6, index * 1e-6, 0.0, goes_on=True)
    assert many.totals.num_steps == MOST_NOTED
    slow.note(planned, 0.0, MOST_SECONDS / 2, 0.0, goes_on=True)
    assert slow.totals.num_steps == 0
    slow.note(planned, MOST_SECONDS / 2, MOST_SECONDS, 0.0, goes_on=True)
    assert slow.totals.num_steps == 2


def run(config: EngineConfig, num_blocks: int, prompt: int) -> StepTotals:
    """Four requests through an engine whose steps take a second, all of it in kernels that are predicted."""
    now = iter(range(10**6))
    telemetry = Telemetry(FixedClock(estimate(1.0)))
    core = make_core(config, num_blocks=num_blocks, telemetry=telemetry, clock=lambda: float(next(now)))
    core.executor.last_native_seconds = 1.0
    for index in range(4):
        core.add_request(core_request(str(index), [index] * prompt, 20))
    while core.has_unfinished_requests:
        core.step()
    return core.stats().steps


def test_an_engine_names_what_keeps_requests_waiting() -> None:
    free = run(EngineConfig(max_num_seqs=4), 64, 20)
    assert free.by_bandwidth == free.seconds == 20
    assert free.by_host == free.busy_seconds - 20 == 19  # a second of gap after each step but the last
    seats = run(EngineConfig(max_num_seqs=1), 64, 20)
    assert (seats.by_queue, seats.by_bandwidth) == (60, 20)
    blocks = run(EngineConfig(max_num_seqs=4, kv_watermark=0.0), 6, 20)
    assert blocks.by_kv_capacity == blocks.by_bandwidth == 20  # two of the four fit at once
    assert blocks.by_queue == 0


def test_idle_time_after_an_abort_of_all_is_no_gap() -> None:
    now = [0.0]
    core = make_core(clock=lambda: now[0], telemetry=Telemetry())
    core.add_request(core_request("a", [1, 2], 50))
    core.step()
    core.abort_requests(["a"])
    now[0] += 600.0
    core.add_request(core_request("b", [1, 2], 1))
    core.step()
    assert core.stats().steps.num_steps == 2
    assert core.stats().steps.busy_seconds == 0.0
