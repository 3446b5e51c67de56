"""A server under load in virtual time: which tokens each step computes, and when each request is answered.

The rules are the engine's: running requests decode first, one token each per step; prompts take what the
token budget leaves, in order of arrival, in chunks; a request enters when its whole sequence fits the KV
cache and a place is free. Runs of steps that differ only in the growing contexts are taken in one jump.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rooftree.planner.workload import SimulatedRequest
from rooftree.roofline.batch import Batch, Span, Window


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Attributes:
    max_batched_tokens: tokens of one step.
    max_sequences: requests running at once.
    kv_tokens: tokens that the KV cache holds; None: it never binds.
    sequence_tokens: what a sequence takes besides its tokens (recurrent states), in tokens of KV.
    reserved_output: share of its answer for which a request must find room to enter. 1: its peak must fit, so
        nothing is ever taken back; 0.5: what requests hold on average, where an engine allocates on demand.
    """

    max_batched_tokens: int = 8192
    max_sequences: int = 256
    kv_tokens: float | None = None
    sequence_tokens: float = 0.0
    reserved_output: float = 1.0


@dataclass(frozen=True, slots=True)
class Segment:
    """``steps`` equal steps; contexts are those in the middle of them."""

    steps: int
    batch: Batch
    decodes: int


Clock = Callable[[Segment], float]
"""Seconds of all steps of a segment."""


@dataclass(slots=True)
class Run:
    """What happened. Times in seconds; one entry per request in ``arrival``, ``first`` and ``last``, and in
    ``before``: segments that had passed when it arrived."""

    arrival: list[float]
    first: list[float]
    last: list[float]
    before: list[int]
    segments: list[Segment] = field(default_factory=list)
    seconds: float = 0.0


@dataclass(slots=True)
class _Prompt:
    request: int
    done: int


class Simulation:
    """One server. ``run_closed`` and ``run_open`` each use it once."""

    def __init__(
        self,
        requests: Sequence[SimulatedRequest],
        limits: ServerLimits,
        windows: Sequence[Window],
        clock: Clock,
    ) -> None:
        self._requests = requests
        self._limits = limits
        self._windows = windows
        self._clock = clock
        self._waiting: deque[int] = deque()
        self._prompts: deque[_Prompt] = deque()
        self._ends: list[tuple[int, int]] = []
        self._step = 0
        self._decodes = 0
        self._context = 0
        self._running = 0
        self._reserved = 0.0
        self._next = 0
        number = len(requests)
        self.now = 0.0
        self.run = Run([0.0] * number, [0.0] * number, [0.0] * number, [0] * number)

    def run_closed(self, clients: int) -> Run:
        """Every client sends its next request when the last is answered."""
        for _ in range(min(clients, len(self._requests))):
            self._arrive(0.0)
        while self._waiting or self._running:
            for _ in range(self._advance(None)):
                if self._next < len(self._requests):
                    self._arrive(self.now)
        self.run.seconds = self.now
        return self.run

    def run_open(self, arrivals: Sequence[float]) -> Run:
        """Requests come at their times, answered or not."""
        while self._next < len(arrivals) or self._waiting or self._running:
            if not self._waiting and not self._running:
                self.now = max(self.now, arrivals[self._next])
            while self._next < len(arrivals) and arrivals[self._next] <= self.now:
                self._arrive(arrivals[self._next])
            self._advance(arrivals[self._next] if self._next < len(arrivals) else None)
        self.run.seconds = self.now
        return self.run

    def _arrive(self, at: float) -> None:
        self.run.arrival[self._next] = at
        self.run.before[self._next] = len(self.run.segments)
        self._waiting.append(self._next)
        self._next += 1

    def _advance(self, until: float | None) -> int:
        """One segment; how many requests ended with it. ``until``: a decode segment stops after this time."""
        self._admit()
        if self._prompts:
            self._prefill_step()
        elif self._decodes:
            self._decode_steps(until)
        return self._finish()

    def _admit(self) -> None:
        limits, requests = self._limits, self._requests
        while self._waiting and self._running < limits.max_sequences:
            request = requests[self._waiting[0]]
            need = self._need(request)
            if limits.kv_tokens is not None and self._running and self._reserved + need > limits.kv_tokens:
                return
            self._reserved += need
            self._running += 1
            self._prompts.append(_Prompt(self._waiting.popleft(), request.cached))

    def _need(self, request: SimulatedRequest) -> float:
        limits = self._limits
        return request.input + request.output * limits.reserved_output + limits.sequence_tokens

    def _prefill_step(self) -> None:
        requests, windows = self._requests, self._windows
        left = max(1, self._limits.max_batched_tokens - self._decodes)
        tokens = outputs = sequences = 0
        pairs, reads = [0] * len(windows), [0] * len(windows)
        ready: list[int] = []
        while self._prompts and left:
            prompt = self._prompts[0]
            size = requests[prompt.request].input
            new = min(size - prompt.done, left)
            for index, window in enumerate(windows):
                pairs[index] += window.pairs(new, prompt.done)
                reads[index] += window.reads(new, prompt.done)
            tokens, left, sequences = tokens + new, left - new, sequences + 1
            prompt.done += new
            if prompt.done == size:
                outputs += 1
                ready.append(prompt.request)
                self._prompts.popleft()
        decodes = self._decodes
        spans = tuple(
            Span(decode.decode, pairs[index], reads[index])
            for index, decode in enumerate(self._decode_spans(decodes, self._context + decodes))
        )
        batch = Batch(tokens + decodes, outputs + decodes, sequences + decodes, spans)
        self._pass(Segment(1, batch, decodes), 1)
        for request in ready:
            self.run.first[request] = self.now
            heapq.heappush(self._ends, (self._step + requests[request].output - 1, request))
            self._decodes += 1
            self._context += requests[request].input

    def _decode_steps(self, until: float | None) -> None:
        steps = self._ends[0][0] - self._step
        decodes = self._decodes
        if until is not None and steps > 1:
            spans = self._decode_spans(decodes, self._context + decodes)
            one = self._clock(Segment(1, Batch(decodes, decodes, decodes, spans), decodes))
            steps = max(1, min(steps, int((until - self.now) / one) + 1))
        if steps:
            spans = self._decode_spans(decodes, self._context + decodes * (steps + 1) / 2)
            self._pass(Segment(steps, Batch(decodes, decodes, decodes, spans), decodes), steps)

    def _decode_spans(self, decodes: int, context: float) -> tuple[Span, ...]:
        return tuple(
            Span(context if window.size is None else min(context, decodes * window.size))
            for window in self._windows
        )

    def _pass(self, segment: Segment, steps: int) -> None:
        self.run.segments.append(segment)
        self.now += self._clock(segment)
        self._step += steps
        self._context += segment.decodes * steps

    def _finish(self) -> int:
        ended = 0
        while self._ends and self._ends[0][0] <= self._step:
            _, index = heapq.heappop(self._ends)
            request = self._requests[index]
            self.run.last[index] = self.now
            self._decodes -= 1
            self._context -= request.input + request.output - 1
            self._reserved -= self._need(request)
            self._running -= 1
            ended += 1
        return ended
