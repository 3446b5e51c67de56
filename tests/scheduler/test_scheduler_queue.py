"""The waiting queue: rank, not moment, decides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooftree.sampling.params import SamplingParams
from rooftree.scheduler.queue import RequestQueue
from rooftree.scheduler.request import Request


def request(arrival: int, priority: int = 0) -> Request:
    made = Request(request_id=str(arrival), token_ids=[1], params=SamplingParams(), max_tokens=1, seed=0)
    made.rank = (priority, arrival)
    return made


def drain(queue: RequestQueue) -> list[str]:
    return [queue.pop().request_id for _ in range(len(queue))]


def test_equal_priorities_are_first_come_first_served() -> None:
    queue = RequestQueue()
    for i in range(5):
        queue.add(request(i))
    assert drain(queue) == ["0", "1", "2", "3", "4"]
    assert not queue


def test_lower_priority_values_come_first() -> None:
    queue = RequestQueue()
    for i, priority in enumerate([1, 0, -1, 0, 1]):
        queue.add(request(i, priority))
    assert drain(queue) == ["2", "1", "3", "0", "4"]


def test_who_comes_back_keeps_its_place() -> None:
    queue = RequestQueue()
    first, second, third = (request(i) for i in range(3))
    queue.add(third)
    queue.add(second)
    assert queue.pop() is second
    queue.add(first)
    queue.add(second)
    assert drain(queue) == ["0", "1", "2"]


def test_removed_requests_are_passed_over() -> None:
    queue = RequestQueue()
    requests = [request(i) for i in range(4)]
    for r in requests:
        queue.add(r)
    queue.remove(requests[0])
    queue.remove(requests[2])
    assert len(queue) == 2
    assert queue.peek() is requests[1]
    assert drain(queue) == ["1", "3"]


def test_an_empty_queue_has_no_head() -> None:
    queue = RequestQueue()
    with pytest.raises(IndexError):
        queue.peek()
    lone = request(0)
    queue.add(lone)
    queue.remove(lone)
    with pytest.raises(IndexError):
        queue.pop()


def test_many_aborts_leave_no_heap_behind() -> None:
    queue = RequestQueue()
    requests = [request(i) for i in range(1000)]
    for r in requests:
        queue.add(r)
    for r in requests[1:]:
        queue.remove(r)
    assert len(queue._heap) <= 18
    assert drain(queue) == ["0"]


@given(st.lists(st.tuples(st.sampled_from("apr"), st.integers(-1, 1), st.integers(0, 50)), max_size=80))
def test_against_a_sorted_list(steps: list[tuple[str, int, int]]) -> None:
    queue = RequestQueue()
    waiting: list[Request] = []
    for arrival, (what, priority, n) in enumerate(steps):
        if what == "a":
            waiting.append(request(arrival, priority))
            queue.add(waiting[-1])
        elif waiting:
            waiting.sort(key=lambda r: r.rank)
            if what == "p":
                assert queue.pop() is waiting.pop(0)
            else:
                queue.remove(waiting.pop(n % len(waiting)))
        assert len(queue) == len(waiting)
    assert drain(queue) == [r.request_id for r in sorted(waiting, key=lambda r: r.rank)]
