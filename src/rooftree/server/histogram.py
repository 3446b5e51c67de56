"""A histogram that costs a token a fraction of a microsecond, and the buckets in use."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

# Fine below 0.3 s, where a small model spends its time; coarse up to hours of queueing.
SECONDS = (
    *(
        0.001,
        0.002,
        0.003,
        0.005,
        0.0075,
        0.01,
        0.015,
        0.02,
        0.03,
        0.04,
        0.05,
        0.06,
        0.08,
        0.1,
        0.15,
        0.2,
        0.25,
        0.3,
    ),
    *(0.4, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0, 7680.0),
)
TOKENS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
SMALL_NUMBERS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)


class Histogram:
    """Counts of values by bucket. Used from one thread, so it takes no lock."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def observe_all(self, values: Iterable[float]) -> None:
        """Count several values."""
        for value in values:
            self.observe(value)

    @property
    def sum(self) -> float:
        """Sum of all values."""
        return self._sum

    def buckets(self) -> list[tuple[str, float]]:
        """(upper bound, number of values up to it) as Prometheus writes them, ending with ``+Inf``."""
        pairs, total = [], 0
        for bound, count in zip((*map(_bound, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            pairs.append((bound, float(total)))
        return pairs


def _bound(value: float) -> str:
    return str(float(value))
