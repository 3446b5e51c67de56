"""What the steps of the last seconds added up to, whoever asks and however often."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import monotonic

from rooftree.engine.messages import StepTotals

SECONDS = 10.0
_GRAIN_SECONDS = 1.0


class Recent:
    """Differences of running totals over the last ``SECONDS``, up to a grain of one second more.

    Totals are subtracted, never added up, so nothing drifts. An idle engine sends its totals each second, so
    that its last steps leave the window too.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._newest = StepTotals()
        self._marks = deque([(clock(), self._newest)])

    def add(self, totals: StepTotals) -> None:
        """Take in the latest totals."""
        self._newest = totals
        now, marks = self._clock(), self._marks
        if now - marks[-1][0] >= _GRAIN_SECONDS:
            marks.append((now, totals))
            while marks[1][0] <= now - SECONDS:
                marks.popleft()

    def totals(self) -> StepTotals:
        """What came within the window."""
        return self._newest.since(self._marks[0][1])
