"""Memory plan of a step program."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rooftree.kernels.arena import ALIGNMENT, Lifetime, plan_arena


@st.composite
def lifetimes(draw: st.DrawFn) -> list[Lifetime]:
    """Values in order of birth, as a recorder makes them."""
    births = sorted(draw(st.lists(st.integers(0, 20), max_size=25)))
    return [Lifetime(draw(st.integers(1, 1000)), first, first + draw(st.integers(0, 8))) for first in births]


def together(a: Lifetime, b: Lifetime) -> bool:
    return a.first <= b.last and b.first <= a.last


def padded(value: Lifetime) -> int:
    return -(-value.size // ALIGNMENT) * ALIGNMENT


@settings(deadline=None, max_examples=200)
@given(lifetimes())
def test_values_alive_together_never_overlap(values: list[Lifetime]):
    offsets, total = plan_arena(values)
    assert all(offset % ALIGNMENT == 0 for offset in offsets)
    for i, a in enumerate(values):
        assert offsets[i] + a.size <= total
        for j, b in enumerate(values[:i]):
            if together(a, b):
                assert offsets[i] + a.size <= offsets[j] or offsets[j] + b.size <= offsets[i]


@settings(deadline=None, max_examples=200)
@given(lifetimes())
def test_the_arena_is_no_larger_than_all_values_and_no_smaller_than_the_busiest_op(values: list[Lifetime]):
    _, total = plan_arena(values)
    assert total <= sum(padded(value) for value in values)
    busiest = max((sum(v.size for v in values if v.first <= op <= v.last) for op in range(30)), default=0)
    assert total >= busiest


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 1000), st.integers(1, 40))
def test_a_chain_of_equal_values_needs_room_for_two(size: int, length: int):
    """Each op reads one value and writes the next: what a decoder mostly is."""
    values = [Lifetime(size, op, op + 1) for op in range(length)]
    offsets, total = plan_arena(values)
    assert total <= 2 * padded(values[0])
    assert len(set(offsets)) == min(length, 2)


def test_nothing_needs_nothing():
    assert plan_arena([]) == ([], 0)
