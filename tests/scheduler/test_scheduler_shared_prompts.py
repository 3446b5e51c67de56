"""Requests with the same prompt at the same time: it is computed once, whatever comes between."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scheduler_rig import VOCAB, Rig, solo

from rooftree.kvcache.block_pool import BlockPool
from rooftree.scheduler.output import ModelRunnerOutput

PROMPT = [i * i % VOCAB for i in range(100)]
SHARED = 96  # of PROMPT, in whole blocks of 16


def shared_rig(**options: object) -> Rig:
    return Rig(**{"num_blocks": 64, "block_size": 16, "max_num_batched_tokens": 512} | options)


def run(rig: Rig) -> dict[str, int]:
    """Step to the end: the tokens computed for each request."""
    computed: dict[str, int] = {}
    while rig.scheduler.has_unfinished:
        step = rig.step()
        assert step, "requests are left but nothing was scheduled"
        for request_id, num_tokens in step.items():
            computed[request_id] = computed.get(request_id, 0) + num_tokens
    return computed


@settings(max_examples=60, deadline=None)
@given(
    others=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 60)), max_size=5),
    budget=st.integers(20, 300),
    max_num_seqs=st.integers(2, 20),
)
def test_four_choices_compute_one_prompt(
    others: list[tuple[int, int]], budget: int, max_num_seqs: int
) -> None:
    rig = shared_rig(max_num_batched_tokens=budget, max_num_seqs=max_num_seqs)
    expected = {}
    for choice in range(5):
        for index, (place, length) in enumerate(others):
            if place == choice:
                request = rig.add(f"other{index}", length, max_tokens=3)
                expected[request.request_id] = solo(request)
        if choice < 4:
            request = rig.add(f"choice{choice}", PROMPT.copy(), max_tokens=5, seed=choice)
            expected[request.request_id] = solo(request)
    computed = run(rig)
    decoded = 4 * (5 - 1)
    # What is beyond the last full block is each choice's own.
    assert sum(computed[f"choice{i}"] for i in range(4)) == 100 + 3 * (100 - SHARED) + decoded
    for request_id, answer in expected.items():
        assert (rig.output(request_id), rig.ends(request_id)) == (answer[0], [answer[1]])


def test_those_who_share_a_prompt_share_its_blocks_and_hold_up_no_one() -> None:
    rig = shared_rig(num_blocks=12)
    for name in "abc":
        rig.add(name, PROMPT.copy(), max_tokens=2)
    rig.add("other", 20, max_tokens=2)
    assert rig.step() == {"a": 100, "other": 20}
    assert rig.scheduler.stats().num_running == 4
    assert rig.step() == {"a": 1, "other": 1, "b": 4, "c": 4}
    assert rig.kv_cache.pool.num_owned == 6 + 2  # the shared ones, and one each of those that go on
    assert rig.scheduler.stats().prefix_cache_hits == 2 * SHARED


def test_a_shared_prompt_is_known_as_far_as_it_is_computed() -> None:
    rig = shared_rig(max_num_batched_tokens=40)
    for name in "ab":
        rig.add(name, PROMPT.copy(), max_tokens=1)
    assert [rig.step() for _ in range(4)] == [{"a": 40}, {"a": 40}, {"a": 20}, {"b": 4}]


@pytest.mark.parametrize("way", ["abort", "error"])
def test_the_next_goes_on_where_the_first_one_ends(way: str) -> None:
    rig = shared_rig(max_num_batched_tokens=40)
    requests = [rig.add(name, PROMPT.copy(), max_tokens=2, seed=i) for i, name in enumerate("abc")]
    expected = [solo(request) for request in requests]
    assert rig.step() == {"a": 40}
    if way == "abort":
        rig.scheduler.abort("a")
    else:
        output = rig.scheduler.schedule()
        assert output is not None
        rig.model.execute(output)
        rig.scheduler.update_from_output(output, ModelRunnerOutput({}, errors={"a": "not finite"}))
    assert rig.scheduler.check_conservation() == []
    # Two blocks were computed; what was begun of the third is done again.
    computed = run(rig)
    assert computed == {"b": 100 - 32 + 1, "c": 4 + 1}
    for request, answer in zip(requests[1:], expected[1:], strict=True):
        assert rig.output(request.request_id) == answer[0]


def test_a_last_token_waits_too_where_one_ranked_before_computes_its_block() -> None:
    rig = shared_rig(max_num_batched_tokens=31, policy="priority")
    late = rig.add("late", PROMPT[:32], max_tokens=2, priority=1)
    urgent = rig.add("urgent", PROMPT[:36], max_tokens=2)
    expected = [solo(late), solo(urgent)]
    rig.scheduler.abort("urgent")
    assert rig.step() == {"late": 31}
    urgent = rig.add("urgent", PROMPT[:36], max_tokens=2)
    assert rig.plan() == {"late": 1}  # a step that never runs, but lets the other one in
    assert rig.step() == {"urgent": 20}
    assert rig.step() == {"urgent": 1, "late": 1}
    rig.drain()
    assert [rig.output("late"), rig.output("urgent")] == [answer for answer, _ in expected]


def test_the_head_of_the_queue_is_not_looked_up_again_until_it_could_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lookups: list[bytes] = []
    lookup = BlockPool.lookup
    monkeypatch.setattr(BlockPool, "lookup", lambda pool, h: lookups.append(h) or lookup(pool, h))
    rig = Rig(num_blocks=50, block_size=4, max_num_batched_tokens=512)
    known = list(range(20))
    rig.add("running", known + [1] * 100, max_tokens=60)
    rig.step()
    rig.add("head", known + [2] * 120, max_tokens=4)
    rig.step()
    lookups.clear()
    for _ in range(40):
        assert rig.step() == {"running": 1}
    assert lookups == []
    rig.drain()
    assert rig.ends("head") == ["length"]
