"""What happened, as data. The engine records; log line, metrics, dashboard and tests read.

The unit is one generation: a request with n choices counts as n, with the one exception of prompt tokens,
which are counted once per request, as in its usage. They are counted with the request's first token, so a
request that ended before it adds nothing. Generated tokens are counted as they reach the front end: those of
an aborted request up to the abort, none that come after it or after a stop string.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from rooftree.engine.messages import SchedulerStats
from rooftree.scheduler.request import FinishReason


@dataclass(frozen=True, slots=True)
class RequestStats:
    """One generation that has ended. Times on the front end's monotonic clock unless said otherwise.

    Attributes:
        index: which of the request's n choices.
        num_cached_tokens: prompt tokens that came from the prefix cache.
        queue_seconds, prefill_seconds: measured by the engine, up to the first token; None without one.
        first_token_seconds: arrival to first token; None without one.
        decode_seconds: first token to last token; None without a token.
        e2e_seconds: arrival to end.
    """

    request_id: str
    index: int
    finish_reason: FinishReason
    num_prompt_tokens: int
    num_cached_tokens: int
    num_generation_tokens: int
    max_tokens: int
    n: int
    num_preemptions: int
    queue_seconds: float | None
    prefill_seconds: float | None
    first_token_seconds: float | None
    decode_seconds: float | None
    e2e_seconds: float


@dataclass(slots=True)
class IterationStats:
    """What one message from the engine, or one event at the front end, has added.

    Attributes:
        num_prompt_tokens: prompt tokens of requests whose first token came.
        num_cached_tokens: those of them that came from the prefix cache.
        first_token_seconds: one entry per generation that got its first token.
        inter_token_seconds: one entry per later token.
        scheduler: the engine's state, if the message brought it.
    """

    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generation_tokens: int = 0
    first_token_seconds: list[float] = field(default_factory=list)
    inter_token_seconds: list[float] = field(default_factory=list)
    finished: list[RequestStats] = field(default_factory=list)
    scheduler: SchedulerStats | None = None


class StatLogger(Protocol):
    """A reader of statistics. It is called on the event loop, so it must not block."""

    def record(self, stats: IterationStats) -> None:
        """Take note. An exception raised here is logged and ends nothing."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of the engine, for comparison with what the cost model said.

    Attributes:
        num_requests: requests in the step.
        num_tokens: tokens computed.
        num_context_tokens: sum over the requests of the tokens that the last computed one attends to.
        seconds: the whole step, scheduling and bookkeeping included.
        native_seconds: the part outside Python.
    """

    num_requests: int
    num_tokens: int
    num_context_tokens: int
    seconds: float
    native_seconds: float
