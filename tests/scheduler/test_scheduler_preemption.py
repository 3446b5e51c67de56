"""When blocks run out: who gives way, and that nobody can tell afterwards."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_rig import Rig, solo

from rooftree.sampling.params import SamplingParams
from rooftree.scheduler.preemption import choose_victim
from rooftree.scheduler.request import Request, RequestStatus


def candidate(arrival: int, num_computed: int, priority: int = 0) -> Request:
    made = Request(request_id=str(arrival), token_ids=[1], params=SamplingParams(), max_tokens=1, seed=0)
    made.rank = (priority, arrival)
    made.num_computed_tokens = num_computed
    return made


@pytest.mark.parametrize(
    ("running", "needy", "victim"),
    [
        ([candidate(0, 10), candidate(1, 5), candidate(2, 7)], 0, 1),
        ([candidate(0, 5), candidate(1, 5), candidate(2, 5)], 0, 2),
        ([candidate(0, 90, -1), candidate(1, 90, 1), candidate(2, 80, 1)], 0, 2),
        ([candidate(0, 90, -1), candidate(1, 10, 0), candidate(2, 80, 1)], 1, 2),
        ([candidate(0, 1), candidate(1, 9), candidate(2, 8)], 0, 2),
        ([candidate(0, 1), candidate(1, 2), candidate(2, 8)], 1, 1),
        ([candidate(0, 1), candidate(1, 2), candidate(2, 8)], 2, 2),
        ([candidate(0, 1)], 0, 0),
    ],
)
def test_the_victim_costs_least_and_is_never_the_first(
    running: list[Request], needy: int, victim: int
) -> None:
    assert choose_victim(running, running[needy]) is running[victim]


def two_that_outgrow_the_pool() -> tuple[Rig, Request, Request]:
    """Six blocks of four: each request needs five in the end."""
    rig = Rig(num_blocks=6, block_size=4)
    return rig, rig.add("old", 8, max_tokens=12), rig.add("young", 7, max_tokens=13)


def test_the_younger_gives_way_and_resumes_with_the_same_answer() -> None:
    rig, old, young = two_that_outgrow_the_pool()
    expected = {r.request_id: solo(r) for r in (old, young)}
    while young.status is not RequestStatus.PREEMPTED:
        assert rig.step()
    assert young.num_output_tokens > 0
    assert (young.num_computed_tokens, young.num_preemptions, old.num_preemptions) == (0, 1, 0)
    assert "young" not in rig.kv_cache.request_ids
    rig.drain()
    for name, (output, reason) in expected.items():
        assert (rig.output(name), rig.ends(name)) == (output, [reason])
    stats = rig.scheduler.stats()
    assert stats.num_preemptions == young.num_preemptions
    assert stats.num_preempted_tokens > 0
    assert [u.num_preemptions for u in rig.updates if u.request_id == "young"][-1] == young.num_preemptions


def test_resuming_keeps_the_first_report_of_cached_tokens_and_times() -> None:
    rig = Rig(num_blocks=6, block_size=4)
    shared = [30, 31, 32, 33]
    rig.add("first", [*shared, 1])
    rig.drain()
    rig.updates.clear()
    rig.add("old", 4, max_tokens=16)
    young = rig.add("young", [*shared, 2, 3], max_tokens=14)
    rig.drain()
    assert young.num_preemptions > 0
    news = [u for u in rig.updates if u.request_id == "young"]
    assert {u.num_cached_tokens for u in news} == {4}
    assert [u.queued_seconds is not None for u in news] == [True] + [False] * (len(news) - 1)
    assert rig.scheduler.stats().prefix_cache_hits == 4


def test_a_prompt_in_progress_gives_way_before_a_long_answer() -> None:
    rig = Rig(num_blocks=10, block_size=4, max_num_seqs=4, max_num_batched_tokens=5)
    rig.add("old", 4, max_tokens=30)
    rig.add("middle", 4, max_tokens=20)
    for _ in range(7):
        rig.step()
    prompt = rig.add("prompt", 16, max_tokens=2)
    expected = solo(prompt)
    while prompt.num_preemptions == 0:
        assert rig.step()
    assert prompt.num_output_tokens == 0
    rig.drain()
    assert (rig.output("prompt"), rig.ends("prompt")) == (expected[0], [expected[1]])


def test_lower_priority_gives_way_whoever_came_first() -> None:
    rig = Rig(num_blocks=6, block_size=4, policy="priority")
    low = rig.add("low", 8, max_tokens=12, priority=1)
    high = rig.add("high", 7, max_tokens=13, priority=0)
    rig.drain()
    assert low.num_preemptions > 0
    assert high.num_preemptions == 0


def test_shared_blocks_outlive_the_one_that_gives_way() -> None:
    rig = Rig(num_blocks=6, block_size=4)
    prompt = list(range(8))
    requests = [rig.add("a", [*prompt, 8], max_tokens=11)]
    rig.step()
    requests.append(rig.add("b", [*prompt, 9], max_tokens=11))
    expected = [solo(r) for r in requests[1:]]
    rig.drain()
    assert requests[1].num_preemptions > 0
    assert rig.output("b") == expected[0][0]


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 20)), min_size=1, max_size=8),
    num_blocks=st.integers(8, 12),
    budget=st.integers(4, 12),
)
def test_the_first_in_rank_advances_at_every_step(
    lengths: list[tuple[int, int]], num_blocks: int, budget: int
) -> None:
    """No livelock: whoever is oldest gets a token each step and is never the victim."""
    rig = Rig(num_blocks=num_blocks, block_size=4, max_num_seqs=4, max_num_batched_tokens=budget)
    requests = [rig.add(f"r{i}", p, max_tokens=m) for i, (p, m) in enumerate(lengths)]
    expected = [solo(r) for r in requests]
    for oldest in requests:
        while not oldest.is_finished:
            assert oldest.request_id in rig.step()
            assert oldest.is_finished or oldest.status is RequestStatus.RUNNING
    assert [(rig.output(r.request_id), rig.ends(r.request_id)) for r in requests] == [
        (output, [reason]) for output, reason in expected
    ]
