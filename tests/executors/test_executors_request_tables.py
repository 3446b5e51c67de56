"""The executor's tables show the live lists of requests, whatever happened to them between steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from rooftree.engine.executors.request_tables import RequestTables
from rooftree.sampling.params import SamplingParams
from rooftree.scheduler.output import ScheduledRequest

ROWS, MAX_TOKENS, MAX_BLOCKS = 4, 30, 8


@dataclass
class Owner:
    """A request's live lists, as the engine and the cache manager hold them."""

    tokens: list[int]
    blocks: list[int]

    def scheduled(self, name: str) -> ScheduledRequest:
        return ScheduledRequest(name, self.tokens, 1, 0, 1, self.blocks, True, SamplingParams(), 0)


def assert_shown(tables: RequestTables, owners: dict[str, Owner], rows: dict[str, int]) -> None:
    assert len(set(rows.values())) == len(rows)
    for name, row in rows.items():
        owner = owners[name]
        assert tables.tokens[row, : len(owner.tokens)].tolist() == owner.tokens
        assert tables.blocks[row, : len(owner.blocks)].tolist() == owner.blocks


class Life(RuleBasedStateMachine):
    """Up to twelve requests over four rows: they grow, are preempted, resume, end, and share steps."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = RequestTables(ROWS, MAX_TOKENS, MAX_BLOCKS)
        self.owners: dict[str, Owner] = {}
        self.born = 0

    @rule(tokens=st.lists(st.integers(0, 99), min_size=1, max_size=20))
    def arrive(self, tokens: list[int]) -> None:
        if len(self.owners) < 12:
            self.owners[f"request {self.born}"] = Owner(tokens, [])
            self.born += 1

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        if self.owners:
            del self.owners[data.draw(st.sampled_from(sorted(self.owners)))]

    @rule(data=st.data(), tokens=st.lists(st.integers(0, 99), min_size=1, max_size=3))
    def gain_tokens(self, data: st.DataObject, tokens: list[int]) -> None:
        if self.owners:
            owner = self.owners[data.draw(st.sampled_from(sorted(self.owners)))]
            owner.tokens += tokens[: MAX_TOKENS - len(owner.tokens)]

    @rule(data=st.data(), blocks=st.lists(st.integers(0, 999), min_size=1, max_size=4))
    def gain_blocks(self, data: st.DataObject, blocks: list[int]) -> None:
        if self.owners:
            owner = self.owners[data.draw(st.sampled_from(sorted(self.owners)))]
            owner.blocks += blocks[: MAX_BLOCKS - len(owner.blocks)]

    @rule(data=st.data(), blocks=st.lists(st.integers(0, 999), max_size=MAX_BLOCKS))
    def preempt(self, data: st.DataObject, blocks: list[int]) -> None:
        """The old table goes; on resumption there is a new list, as long as the old one or not."""
        if self.owners:
            self.owners[data.draw(st.sampled_from(sorted(self.owners)))].blocks = blocks

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        if not self.owners:
            return
        names = data.draw(st.lists(st.sampled_from(sorted(self.owners)), max_size=ROWS, unique=True))
        rows = {name: self.tables.row_for(self.owners[name].scheduled(name), names) for name in names}
        assert_shown(self.tables, self.owners, rows)


TestLife = Life.TestCase
TestLife.settings = settings(deadline=None, max_examples=40, stateful_step_count=30)


def test_a_row_stays_while_its_request_does():
    tables = RequestTables(2, 10, 2)
    owners = {name: Owner([1, 2], [3]) for name in "ab"}
    rows = {name: tables.row_for(owners[name].scheduled(name), owners) for name in owners}
    for token in range(5):
        owners["a"].tokens.append(token)
        assert tables.row_for(owners["a"].scheduled("a"), ["a"]) == rows["a"]
    assert_shown(tables, owners, rows)


def test_requests_outside_the_step_make_room():
    tables = RequestTables(2, 4, 1)
    owners = {name: Owner([ord(name)], [ord(name)]) for name in "abcd"}
    for pair in ("ab", "bc", "cd", "da"):
        assert_shown(
            tables, owners, {name: tables.row_for(owners[name].scheduled(name), pair) for name in pair}
        )


def test_a_new_list_of_equal_length_is_copied():
    tables = RequestTables(1, 4, 3)
    owner = Owner([1], [5, 6])
    row = tables.row_for(owner.scheduled("a"), ["a"])
    owner.blocks = [7, 8]
    tables.row_for(owner.scheduled("a"), ["a"])
    assert tables.blocks[row, :2].tolist() == [7, 8]


def test_the_longest_request_fits_exactly():
    tables = RequestTables(1, 100, 7)
    owner = Owner(list(range(100)), list(range(7)))
    assert_shown(tables, {"a": owner}, {"a": tables.row_for(owner.scheduled("a"), ["a"])})
    assert tables.tokens.dtype == tables.blocks.dtype == np.int32


@pytest.mark.parametrize("grow", [1, 2, 17])
def test_growth_by_any_number_of_tokens(grow: int):
    tables = RequestTables(1, 64, 4)
    owner = Owner([0], [1])
    row = tables.row_for(owner.scheduled("a"), ["a"])
    for begin in range(1, 60 - grow, grow):
        owner.tokens.extend(range(begin, begin + grow))
        tables.row_for(owner.scheduled("a"), ["a"])
        assert tables.tokens[row, : len(owner.tokens)].tolist() == owner.tokens
