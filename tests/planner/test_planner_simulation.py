"""The simulated server: every token computed once, limits respected, jumps that change nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rooftree.planner.lengths import fixed, parse_lengths, uniform
from rooftree.planner.simulation import Run, Segment, ServerLimits, Simulation
from rooftree.planner.workload import SimulatedRequest, Workload, draw_arrivals, draw_requests
from rooftree.roofline.batch import Window

WINDOWS = (Window(), Window(64))

loads = st.lists(
    st.builds(
        lambda prompt, cached, output: SimulatedRequest(prompt, min(cached, prompt - 1), output),
        st.integers(1, 400),
        st.integers(0, 399),
        st.integers(1, 60),
    ),
    min_size=1,
    max_size=30,
)
limits = st.builds(
    ServerLimits,
    max_batched_tokens=st.integers(1, 600),
    max_sequences=st.integers(1, 12),
    kv_tokens=st.one_of(st.none(), st.floats(1, 3000)),
    reserved_output=st.sampled_from((0.5, 1.0)),
)


def seconds(segment: Segment) -> float:
    """A linear clock: then a jump of many steps must take as long as the steps one by one."""
    span = segment.batch.spans[0]
    return segment.steps * (1e-3 + 1e-5 * segment.batch.tokens + 1e-7 * (span.decode + span.prefill_pairs))


def run(requests: list[SimulatedRequest], limit: ServerLimits, clients: int) -> Run:
    return Simulation(requests, limit, WINDOWS, seconds).run_closed(clients)


@settings(max_examples=80, deadline=None)
@given(loads, limits, st.integers(1, 20))
def test_every_token_is_computed_once(
    requests: list[SimulatedRequest], limit: ServerLimits, clients: int
) -> None:
    result = run(requests, limit, clients)
    tokens = sum(segment.batch.tokens * segment.steps for segment in result.segments)
    assert tokens == sum(r.input - r.cached + r.output - 1 for r in requests)
    outputs = sum(segment.batch.outputs * segment.steps for segment in result.segments)
    assert outputs == sum(r.output for r in requests)
    for index, request in enumerate(requests):
        assert result.arrival[index] < result.first[index] <= result.last[index]
        assert (result.first[index] == result.last[index]) == (request.output == 1)


@settings(max_examples=80, deadline=None)
@given(loads, limits, st.integers(1, 20))
def test_limits_are_kept(requests: list[SimulatedRequest], limit: ServerLimits, clients: int) -> None:
    for segment in run(requests, limit, clients).segments:
        assert segment.batch.sequences <= min(limit.max_sequences, clients)
        if segment.batch.tokens > segment.decodes:
            assert segment.batch.tokens <= max(limit.max_batched_tokens, segment.decodes + 1)


@settings(max_examples=60, deadline=None)
@given(loads, st.integers(1, 20))
def test_decode_pairs_are_those_of_all_contexts(requests: list[SimulatedRequest], clients: int) -> None:
    """Jumps take the context in their middle, which is exact for a sum."""
    result = run(requests, ServerLimits(), clients)
    read = sum(segment.batch.spans[0].decode * segment.steps for segment in result.segments)
    assert read == pytest.approx(
        sum(r.input + i for r in requests for i in range(1, r.output)), rel=1e-9, abs=1e-6
    )


def test_more_clients_serve_more_and_wait_longer() -> None:
    requests = [SimulatedRequest(200, 0, 50)] * 80
    one, many = run(requests, ServerLimits(), 1), run(requests, ServerLimits(), 16)
    assert many.seconds < one.seconds
    assert many.last[79] - many.arrival[79] > one.last[79] - one.arrival[79]


def test_a_cached_prefix_saves_its_prefill_but_not_its_attention() -> None:
    whole = run([SimulatedRequest(400, 0, 1)], ServerLimits(), 1)
    cached = run([SimulatedRequest(400, 300, 1)], ServerLimits(), 1)
    assert cached.segments[0].batch.tokens == 100
    assert cached.segments[0].batch.spans[0].prefill_pairs == sum(range(301, 401))
    assert cached.seconds < whole.seconds


def test_an_open_loop_waits_for_its_arrivals() -> None:
    workload = Workload(fixed(100), fixed(10), rate=0.01, requests=20)
    arrivals = draw_arrivals(workload, 20)
    result = Simulation(draw_requests(workload, 20), ServerLimits(), WINDOWS, seconds).run_open(arrivals)
    assert result.arrival == list(arrivals)
    waits = [first - at for first, at in zip(result.first, result.arrival, strict=True)]
    assert max(waits) < 1.0


def test_an_open_loop_is_the_same_step_by_step() -> None:
    """Arrivals interrupt a jump of decode steps: nobody waits longer than a step for it."""
    requests = [SimulatedRequest(10, 0, 500), SimulatedRequest(10, 0, 5)]
    result = Simulation(requests, ServerLimits(), WINDOWS, seconds).run_open([0.0, 0.2])
    assert result.first[1] - 0.2 < 0.01


def test_draws_are_the_same_every_time() -> None:
    workload = Workload(uniform(10, 500), parse_lengths("lognormal:100:0.8:400", "--output"), 4)
    assert draw_requests(workload, 50) == draw_requests(workload, 50)
    assert all(request.output <= 400 for request in draw_requests(workload, 500))


def test_lognormal_lengths_have_the_stated_mean() -> None:
    workload = Workload(fixed(1), parse_lengths("lognormal:200:0.6", "--output"), 1, burst=True)
    drawn = [request.output for request in draw_requests(workload, 20_000)]
    assert sum(drawn) / len(drawn) == pytest.approx(200, rel=0.03)
