"""Each step held against the cost model: how long it should have taken, and what bound it.

Busy time is the time of the steps, and of the gaps between a step that left work behind and the next one.
Every second of it is put down to one limit:

- ``host``: gaps; the time of a step outside the kernels (scheduling, bookkeeping); the time inside them
  beyond ``SLACK`` times the prediction, which no property of the step explains (others have the cores); and
  the rest of a step in whose prediction fixed costs outweigh bytes and FLOP.
- ``kv_capacity``: the rest of a step for which a request kept waiting, or gave way, for want of KV blocks.
- ``queue``: the rest of a step that left a request out because ``max_num_seqs`` requests run, or all of
  ``max_num_batched_tokens`` are given out; unless arithmetic binds, for then a wider step would only take
  that much longer.
- ``bandwidth``, ``arithmetic``: the rest of all others, by what takes most of the predicted time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from typing import NamedTuple, Protocol

from rooftree.engine.messages import StepTotals
from rooftree.engine.stats import Bound, StepRecord
from rooftree.engine.step_log import StepLog
from rooftree.roofline.batch import Batch, Span, Window
from rooftree.roofline.clock import StepEstimate
from rooftree.scheduler.output import ScheduledRequest, SchedulerOutput, Shortage

SLACK = 1.5
"""Kernels may take this much longer than predicted before the excess is put down to the host."""

MOST_NOTED = 32
MOST_SECONDS = 0.25
"""Steps that wait to be gone through, and how long the first of them may: metrics lag by no more."""

_LIMITS: dict[str, Bound] = {"bandwidth": "bandwidth", "arithmetic": "arithmetic"}
_EVERYTHING = Window()
_UNKNOWN = StepEstimate(0.0, 0.0, 0.0, 0.0, 0.0, "overhead")


class Predictor(Protocol):
    """What says how long a step should take: a ``roofline.clock.StepClock``."""

    def estimate(self, batch: Batch) -> StepEstimate:
        """Seconds, bytes, FLOP and the limit of a step."""


class _Step(NamedTuple):
    """One step as the loop saw it. ``goes_on``: the time until the next one is busy."""

    planned: SchedulerOutput
    began: float
    ended: float
    native_seconds: float
    goes_on: bool


class Telemetry:
    """Records steps and adds them up. For one thread.

    The kernels leave nothing of Python in the processor's caches, so whatever is done after a step takes many
    times what it takes elsewhere. Steps are therefore only noted, and gone through in groups: at the latest
    after ``MOST_NOTED`` of them or ``MOST_SECONDS``, and when the engine comes to rest.

    Args:
        clock: predicts steps of this model on this machine; None: there is no model of this executor, and all
            time that no shortage explains is the host's.
        windows: of the model's attention (``ModelCosts.windows``), which ``clock`` wants batches for.
        epoch: seconds since 1970 at zero of the clock by which steps are timed.
        log: takes each record; closed with this.
    """

    def __init__(
        self,
        clock: Predictor | None = None,
        windows: Sequence[Window] = (_EVERYTHING,),
        epoch: float = 0.0,
        log: StepLog | None = None,
    ) -> None:
        self._clock = clock
        self._windows = tuple(windows)
        self._sizes = tuple(window.size for window in windows)
        self._epoch = epoch
        self._log = log
        self._noted: list[_Step] = []
        self._totals = StepTotals()
        self._last: StepRecord | None = None
        self._left_work_at: float | None = None

    @property
    def totals(self) -> StepTotals:
        """Sums as far as steps have been gone through, as a copy."""
        return copy(self._totals)

    @property
    def last_step(self) -> StepRecord | None:
        """Record of the latest step."""
        self.settle()
        return self._last

    def note(
        self, planned: SchedulerOutput, began: float, ended: float, native_seconds: float, *, goes_on: bool
    ) -> None:
        """Take in one step.

        Args:
            began, ended: of the whole step, on one clock.
            native_seconds: the part inside the kernels.
            goes_on: work is left, so that the time until the next step is busy.
        """
        noted = self._noted
        noted.append(_Step(planned, began, ended, native_seconds, goes_on))
        if not goes_on or len(noted) >= MOST_NOTED or ended - noted[0].began >= MOST_SECONDS:
            self.settle()

    def rest(self) -> None:
        """The engine has nothing to do: the time until its next step is no gap."""
        self.settle()
        self._left_work_at = None

    def settle(self) -> None:
        """Go through the steps noted."""
        noted, self._noted = self._noted, []
        for step in noted:
            self._last = self._record(step)
            if self._log is not None:
                self._log.add(self._last)

    def close(self) -> None:
        """Write what the log lacks; idempotent."""
        self.settle()
        if self._log is not None:
            self._log.close()

    def _record(self, step: _Step) -> StepRecord:
        planned, began, ended, native_seconds, goes_on = step
        batch, num_prefill_tokens = step_batch(planned.requests, self._windows)
        estimate = _UNKNOWN if self._clock is None else self._clock.estimate(batch)
        seconds = ended - began
        bound, host = attribute(seconds, native_seconds, estimate, planned.shortage)
        gap = 0.0 if self._left_work_at is None else max(0.0, began - self._left_work_at)
        self._left_work_at = ended if goes_on else None
        self._add(batch, num_prefill_tokens, estimate, seconds, native_seconds)
        self._bind("host", host + gap)
        self._bind(bound, seconds - host)
        per_second = 1.0 / seconds if seconds > 0 else 0.0
        return StepRecord(
            self._epoch + began,
            len(planned.requests),
            planned.total_num_scheduled_tokens,
            num_prefill_tokens,
            int(batch.outputs),
            self._sizes,
            tuple([span.decode for span in batch.spans]),
            tuple([span.prefill_pairs for span in batch.spans]),
            tuple([span.prefill_reads for span in batch.spans]),
            seconds,
            native_seconds,
            estimate.seconds,
            estimate.bytes,
            estimate.flop,
            estimate.bandwidth_seconds * per_second,
            estimate.arithmetic_seconds * per_second,
            "host" if host > 0.5 * seconds else bound,
        )

    def _add(
        self,
        batch: Batch,
        num_prefill_tokens: int,
        estimate: StepEstimate,
        seconds: float,
        native_seconds: float,
    ) -> None:
        totals = self._totals
        totals.num_steps += 1
        totals.num_requests += int(batch.sequences)
        totals.num_tokens += int(batch.tokens)
        totals.num_prefill_tokens += num_prefill_tokens
        totals.num_outputs += int(batch.outputs)
        totals.seconds += seconds
        totals.native_seconds += native_seconds
        totals.predicted_seconds += estimate.seconds
        totals.num_bytes += estimate.bytes
        totals.flop += estimate.flop
        totals.bandwidth_seconds += estimate.bandwidth_seconds
        totals.arithmetic_seconds += estimate.arithmetic_seconds

    def _bind(self, bound: Bound, seconds: float) -> None:
        totals = self._totals
        match bound:
            case "bandwidth":
                totals.by_bandwidth += seconds
            case "arithmetic":
                totals.by_arithmetic += seconds
            case "kv_capacity":
                totals.by_kv_capacity += seconds
            case "queue":
                totals.by_queue += seconds
            case "host":
                totals.by_host += seconds


def attribute(
    seconds: float, native_seconds: float, estimate: StepEstimate, shortage: Shortage | None
) -> tuple[Bound, float]:
    """The limit of a step, and how much of its ``seconds`` is the host's whatever that limit is.

    See the head of this module.
    """
    explained = min(native_seconds, seconds)
    if estimate.seconds > 0.0:
        explained = min(explained, SLACK * estimate.seconds)
    host = seconds - explained
    if shortage == "blocks":
        return "kv_capacity", host
    if shortage is not None and estimate.limit != "arithmetic":
        return "queue", host
    return _LIMITS.get(estimate.limit, "host"), host


def step_batch(requests: Iterable[ScheduledRequest], windows: Sequence[Window]) -> tuple[Batch, int]:
    """The sums of a step that the cost model wants, and the tokens of requests that compute more than one."""
    if len(windows) == 1 and windows[0].size is None:
        return _whole_context_batch(requests)
    return _windowed_batch(requests, windows)


def _whole_context_batch(requests: Iterable[ScheduledRequest]) -> tuple[Batch, int]:
    """Nearly every model, in one pass."""
    sequences = outputs = decodes = decode = prefill = pairs = reads = 0
    for request in requests:
        sequences += 1
        outputs += request.samples
        new, context = request.num_tokens, request.start
        if new == 1:
            decodes += 1
            decode += context + 1
        else:
            prefill += new
            reads += context + new
            pairs += new * context + new * (new + 1) // 2
    return Batch(decodes + prefill, outputs, sequences, (Span(decode, pairs, reads),)), prefill


def _windowed_batch(requests: Iterable[ScheduledRequest], windows: Sequence[Window]) -> tuple[Batch, int]:
    sequences = outputs = decodes = prefill = 0
    sums = [[0, 0, 0] for _ in windows]
    for request in requests:
        sequences += 1
        outputs += request.samples
        new, context = request.num_tokens, request.start
        if new == 1:
            decodes += 1
            for total, window in zip(sums, windows, strict=True):
                total[0] += window.pairs(1, context)
        else:
            prefill += new
            for total, window in zip(sums, windows, strict=True):
                total[1] += window.pairs(new, context)
                total[2] += window.reads(new, context)
    spans = tuple([Span(*total) for total in sums])
    return Batch(decodes + prefill, outputs, sequences, spans), prefill
