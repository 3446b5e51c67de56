"""Where the values of a step program lie: values that are never alive together share memory."""

from __future__ import annotations

from dataclasses import dataclass

ALIGNMENT = 64


@dataclass(slots=True)
class Lifetime:
    """A value's size in bytes, and the first and last op that touches it."""

    size: int
    first: int
    last: int


def plan_arena(values: list[Lifetime]) -> tuple[list[int], int]:
    """Offsets of the values and the bytes of the arena: first fit, in order of birth."""
    offsets: list[int] = []
    total = 0
    for value in values:
        alive = sorted(
            (offsets[i], offsets[i] + other.size)
            for i, other in enumerate(values[: len(offsets)])
            if other.last >= value.first and other.first <= value.last
        )
        offset = 0
        for begin, end in alive:
            if offset + value.size <= begin:
                break
            offset = max(offset, -(-end // ALIGNMENT) * ALIGNMENT)
        offsets.append(offset)
        total = max(total, offset + value.size)
    return offsets, total
