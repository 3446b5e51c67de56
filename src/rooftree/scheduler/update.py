"""What the scheduler tells the engine: news of requests, and its own state in numbers."""

from __future__ import annotations

from dataclasses import dataclass

from rooftree.scheduler.output import TokenLogprobs
from rooftree.scheduler.request import FinishReason


@dataclass(slots=True)
class RequestUpdate:
    """News of one request after a step, or of its end by abort.

    Attributes:
        new_token_ids: one token, or none where the request ended without (abort, error).
        stop_reason: the member of ``stop_token_ids`` that ended it; None for end-of-sequence and everything
            else.
        num_cached_tokens: prompt tokens found in the prefix cache when the request was first scheduled.
        queued_seconds, prefill_seconds: with the first token only: arrival to first scheduling, and first
            scheduling to first token.
        error: why, where ``finish_reason`` is "error".
    """

    request_id: str
    new_token_ids: list[int]
    logprobs: TokenLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    queued_seconds: float | None = None
    prefill_seconds: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class SchedulerSnapshot:
    """State now, and totals since start, which never fall. Blocks: free + cached + owned = total.

    Attributes:
        prefix_cache_queries, prefix_cache_hits: prompt tokens of requests when first scheduled, and how many
            of them the prefix cache held then, or another request computed for both. Resuming after a
            preemption counts in neither.
        num_preempted_tokens: computed tokens given up by preemption.
    """

    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_cached_blocks: int
    num_owned_blocks: int
    num_total_blocks: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    num_preemptions: int
    num_preempted_tokens: int
