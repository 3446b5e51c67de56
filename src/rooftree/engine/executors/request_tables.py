"""Token ids and block tables of running requests, as the native program reads them."""

from __future__ import annotations

from collections.abc import Container

import numpy as np

from rooftree.scheduler.output import ScheduledRequest


class _Row:
    """A request's place in the tables, and how much of its lists has been copied there."""

    __slots__ = ("block_ids", "index", "num_blocks", "num_tokens", "token_ids")

    def __init__(self, index: int) -> None:
        self.index = index
        self.num_tokens = 0
        self.num_blocks = 0
        self.token_ids: list[int] | None = None
        self.block_ids: list[int] | None = None


class RequestTables:
    """One row per request, brought up to date with what its lists gained since the last step.

    Rows outlive steps, so a decode step copies one token. When rows run out, those of requests outside the
    step are given up.
    """

    def __init__(self, num_rows: int, max_tokens: int, max_blocks: int) -> None:
        self.tokens = np.zeros((num_rows, max_tokens), np.int32)
        self.blocks = np.zeros((num_rows, max_blocks), np.int32)
        self._rows: dict[str, _Row] = {}
        self._free = list(range(num_rows))

    @staticmethod
    def num_bytes(num_rows: int, max_tokens: int, max_blocks: int) -> int:
        """Bytes of both tables, of int32."""
        return 4 * num_rows * (max_tokens + max_blocks)

    def row_for(self, request: ScheduledRequest, in_step: Container[str]) -> int:
        """Index of the request's row, up to date. ``in_step``: ids whose rows must stay."""
        row = self._rows.get(request.request_id)
        if row is None:
            if not self._free:
                self._evict(in_step)
            row = self._rows[request.request_id] = _Row(self._free.pop())
        tokens, num_tokens = request.token_ids, len(request.token_ids)
        if row.token_ids is not tokens:  # another request under the same id
            row.token_ids, row.num_tokens = tokens, 0
        if row.num_tokens != num_tokens:
            if num_tokens - row.num_tokens == 1:
                self.tokens[row.index, row.num_tokens] = tokens[-1]
            else:
                self.tokens[row.index, row.num_tokens : num_tokens] = tokens[row.num_tokens :]
            row.num_tokens = num_tokens
        blocks, num_blocks = request.block_ids, len(request.block_ids)
        if row.block_ids is not blocks:  # a new list: first step, or resumed after preemption
            row.block_ids, row.num_blocks = blocks, 0
        if row.num_blocks != num_blocks:
            self.blocks[row.index, row.num_blocks : num_blocks] = blocks[row.num_blocks :]
            row.num_blocks = num_blocks
        return row.index

    def _evict(self, in_step: Container[str]) -> None:
        gone = [request_id for request_id in self._rows if request_id not in in_step]
        self._free.extend(self._rows.pop(request_id).index for request_id in gone)
