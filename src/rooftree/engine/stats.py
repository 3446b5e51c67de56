"""What happened, as data. The engine records; log line, metrics, dashboard and tests read.

The unit is one generation: a request with n choices counts as n, with the one exception of prompt tokens,
which are counted once per request, as in its usage. They are counted with the request's first token, so a
request that ended before it adds nothing. Generated tokens are counted as they reach the front end: those of
an aborted request up to the abort, none that come after it or after a stop string.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

import msgspec

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


Bound = Literal["bandwidth", "arithmetic", "kv_capacity", "queue", "host"]


class StepRecord(msgspec.Struct, frozen=True):
    """One step of the engine beside what the cost model says of it: a line of the step log.

    Contexts are kept apart as the cost model needs them (``rooftree.roofline.batch.Span``): ``windows`` are
    the model's attention windows in tokens (None: everything), and the three lists are parallel to it.

    Attributes:
        at: when the step began, in seconds since 1970.
        num_requests: requests in the step.
        num_tokens: tokens computed.
        num_prefill_tokens: those of requests that compute more than one.
        num_outputs: requests that got a token.
        decode_context: tokens attended to by the requests that compute one, that one included.
        prefill_pairs, prefill_reads: of the other requests, pairs of a computed token and one that it attends
            to, and tokens attended to, each counted once per request.
        seconds: the whole step, scheduling and bookkeeping included.
        native_seconds: the part of it inside the kernels' one call.
        predicted_seconds: by the cost model; 0 where there is none of this executor.
        bytes, flop: moved and computed, by the cost model.
        bandwidth_fraction, arithmetic_fraction: what the bytes and the FLOP take at the machine's rates, as
            a share of ``seconds``.
        bound: the limit that bound most of it (``rooftree.engine.telemetry``).
    """

    at: float
    num_requests: int
    num_tokens: int
    num_prefill_tokens: int
    num_outputs: int
    windows: tuple[int | None, ...]
    decode_context: tuple[float, ...]
    prefill_pairs: tuple[float, ...]
    prefill_reads: tuple[float, ...]
    seconds: float
    native_seconds: float
    predicted_seconds: float
    bytes: float
    flop: float
    bandwidth_fraction: float
    arithmetic_fraction: float
    bound: Bound
