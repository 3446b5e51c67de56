"""A long step that gets on is heard of, one that is stuck is not."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pytest

from rooftree.engine.pulse import Pulse


class Work:
    """Progress that is looked at a number of times, then says so."""

    def __init__(self, values: list[int]) -> None:
        self.beats = 0
        self.seen = threading.Event()
        self._values = iter(values)
        self._last = values[-1]

    def progress(self) -> int:
        value = next(self._values, None)
        if value is None:
            self.seen.set()
            return self._last
        return value

    def beat(self) -> None:
        self.beats += 1


@pytest.mark.parametrize(
    ("values", "beats"), [([0, 1, 2, 3], 3), ([5, 5, 5, 5], 0), ([1, 1, 2, 2, 2, 3, 0], 3), ([7], 0)]
)
def test_a_beat_needs_progress_since_the_last(values: list[int], beats: int):
    work = Work(values)
    with Pulse(work.beat, work.progress, 0.001):
        assert work.seen.wait(30)
    assert work.beats == beats


def test_it_ends_with_the_block_even_by_an_error():
    before = threading.active_count()
    count: Callable[[], int] = itertools.count().__next__

    def fail() -> None:
        with Pulse(lambda: None, count, 60):
            assert threading.active_count() == before + 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert threading.active_count() == before
