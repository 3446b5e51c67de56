"""What the machine can do at the most, by the native loops that do nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rooftree import _native
from rooftree.engine.executors.cores import spread_processors

READ_BYTES = 1 << 28
ROUNDS = 400_000
TRIES = 9
READ_TRIES = 5


@dataclass(frozen=True, slots=True)
class Limits:
    """What that many threads reach together, best of several tries, in bytes and operations per second.

    A multiply-add is two operations.

    Attributes:
        read: from memory far larger than the caches.
        fp32, int8: operands in registers; int8 by way of computing.
    """

    threads: int
    read: float
    fp32: float
    int8: Mapping[str, float]

    @property
    def best_int8(self) -> float:
        """Of the best way."""
        return max(self.int8.values())

    def best(self, again: Limits) -> Limits:
        """The higher of two measurements, rate by rate: nothing makes a machine faster than it is."""
        int8 = {way: max(rate, again.int8[way]) for way, rate in self.int8.items()}
        return Limits(self.threads, max(self.read, again.read), max(self.fp32, again.fp32), int8)


def measure_limits(isa: str, threads: int, *, read_bytes: int = READ_BYTES) -> Limits:
    """Take half a second for it.

    Raises:
        ValueError: an instruction set that is not available, or no thread.
    """
    processors = spread_processors(threads)
    return Limits(
        threads=threads,
        read=_native.read_rate(isa, processors, read_bytes, READ_TRIES),
        fp32=_native.fp32_rate(isa, processors, ROUNDS, TRIES),
        int8=dict(_native.int8_rates(isa, processors, ROUNDS, TRIES)),
    )
