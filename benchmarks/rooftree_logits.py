"""Logits of Rooftree's CPU executor at every position of a text, by steps that a scheduler could plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rooftree.checkpoint.base import Checkpoint
from rooftree.engine.config import KVCacheDType
from rooftree.engine.executors.cpu import CPUExecutor
from rooftree.kernels.ops import Floats
from rooftree.sampling.params import SamplingParams
from rooftree.scheduler.output import ScheduledRequest, SchedulerOutput

_BLOCK_SIZE = 16
_ROWS = 64
_GREEDY = SamplingParams(temperature=0.0)


class RooftreeLogits:
    """Prefills a text as one chunk, then samples each position by a request of its own on the same blocks."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        length: int,
        threads: int,
        isa: str | None,
        kv_cache_dtype: KVCacheDType = "fp16",
    ) -> None:
        self._executor = CPUExecutor(
            checkpoint,
            max_num_seqs=_ROWS,
            max_num_batched_tokens=max(length, _ROWS),
            max_model_len=length,
            block_size=_BLOCK_SIZE,
            kv_cache_dtype=kv_cache_dtype,
            threads=threads,
            isa=isa,
        )
        num_blocks = -(-length // _BLOCK_SIZE)
        self._executor.allocate_kv_cache(num_blocks)
        self._blocks = list(range(num_blocks))
        self._num_requests = 0

    def logits(self, tokens: Sequence[int]) -> Floats:
        """(positions, vocab), for at most ``length`` tokens from position 0."""
        text, n = list(tokens), len(tokens)
        self._execute([self._request(text, 0, n, samples=False)])
        parts = []
        for start in range(0, n, _ROWS):
            positions = range(start, min(start + _ROWS, n))
            self._execute([self._request(text[: i + 1], i, 1, samples=True) for i in positions])
            parts.append(self._executor.last_logits(len(positions)))
        return np.concatenate(parts)

    def _request(self, tokens: list[int], start: int, num_tokens: int, *, samples: bool) -> ScheduledRequest:
        self._num_requests += 1
        name = f"r{self._num_requests}"
        return ScheduledRequest(
            name, tokens, len(tokens), start, num_tokens, self._blocks, samples, _GREEDY, 0
        )

    def _execute(self, requests: list[ScheduledRequest]) -> None:
        scheduled = {request.request_id: request.num_tokens for request in requests}
        result = self._executor.execute(SchedulerOutput(requests, scheduled, sum(scheduled.values())))
        if result.errors:
            raise RuntimeError(next(iter(result.errors.values())))
