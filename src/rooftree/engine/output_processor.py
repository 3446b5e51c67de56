"""From the core's token ids to what callers receive: text, stop strings, log-probabilities, choices,
statistics.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from rooftree.engine.input_processor import ProcessedRequest
from rooftree.engine.logprobs import LogprobsReader
from rooftree.engine.messages import EngineCoreOutput, EngineCoreOutputs
from rooftree.engine.outputs import CompletionOutput, RequestOutput
from rooftree.engine.stats import IterationStats, RequestStats, StatLogger
from rooftree.errors import RequestError
from rooftree.scheduler.request import FinishReason
from rooftree.text.stop_matcher import StopStrings
from rooftree.text.stream import TextStream

if TYPE_CHECKING:
    from rooftree.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

Sink = Callable[[RequestOutput], None]


@dataclass(slots=True, eq=False)
class _Choice:
    """One generation under way. Times on the front end's clock."""

    core_id: str
    index: int
    request: _Request
    text: TextStream
    num_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    queue_seconds: float | None = None
    prefill_seconds: float | None = None
    first_token: float | None = None
    last_token: float = 0.0


@dataclass(slots=True, eq=False)
class _Request:
    """A request under way: ``choices`` are those that have not ended."""

    asked: ProcessedRequest
    sink: Sink
    arrival: float
    choices: dict[int, _Choice] = field(default_factory=dict)
    prompt_counted: bool = False
    num_cached_tokens: int = 0

    def news(self) -> RequestOutput:
        return RequestOutput(self.asked.request_id, self.asked.prompt_token_ids, [])


class OutputProcessor:
    """Keeps the books of every request that runs, and closes them once.

    Deltas go to each request's sink, one call for each message that brought news of it. A sink must not
    block; the delta is its own. No sockets, no event loop: ``LLM`` and ``AsyncLLM`` both use it.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stat_logger: StatLogger | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._tokenizer = tokenizer
        self._stat_logger = stat_logger
        self._clock = clock
        self._logprobs = LogprobsReader(tokenizer)
        self._requests: dict[str, _Request] = {}
        self._choices: dict[str, _Choice] = {}
        self._stops: WeakValueDictionary[tuple[str, ...], StopStrings] = WeakValueDictionary()

    @property
    def num_unfinished(self) -> int:
        """Generations that have not ended."""
        return len(self._choices)

    @property
    def request_ids(self) -> list[str]:
        """Requests that have not ended."""
        return list(self._requests)

    def add_request(self, asked: ProcessedRequest, sink: Sink, arrival: float) -> None:
        """Open the books of a request; to be called before the core hears of it.

        Raises:
            RequestError: the id is in use, or a stop string is not possible.
        """
        if asked.request_id in self._requests:
            raise RequestError(f"request id {asked.request_id!r} is in use", status=409, param="request_id")
        request = _Request(asked, sink, arrival)
        stops = self._stop_strings(asked.params.stop)
        for index, choice in enumerate(asked.choices):
            # An answer continues its prompt, so a space that its first token begins with is part of it.
            text = TextStream(self._tokenizer, stops, at_start=False)
            request.choices[index] = _Choice(choice.request_id, index, request, text)
        self._requests[asked.request_id] = request
        self._choices.update({choice.core_id: choice for choice in request.choices.values()})

    def _stop_strings(self, stops: Sequence[str]) -> StopStrings | None:
        """Made ready once for all choices that look for the same ones: long ones take megabytes."""
        if not stops:
            return None
        known = self._stops.get(tuple(stops))
        if known is None:
            known = self._stops[tuple(stops)] = StopStrings(stops)
        return known

    def process(self, message: EngineCoreOutputs) -> list[str]:
        """Take in one message of the core and pass on the news.

        Returns:
            Ids to abort in the core: generations that a stop string ended here.
        """
        now = self._clock()
        stats = IterationStats(scheduler=message.stats)
        moved: dict[str, RequestOutput] = {}
        aborts: list[str] = []
        for output in message.outputs:
            choice = self._choices.get(output.request_id)
            if choice is None:
                continue
            request = choice.request
            try:
                delta = self._advance(choice, output, now, stats)
            except Exception:
                # A defect of ours, but it must not cost the other requests their news.
                logger.exception("request %s cannot be told its news", request.asked.request_id)
                moved.pop(request.asked.request_id, None)
                aborts += self.abort(
                    request.asked.request_id, "the answer could not be put into text", "error"
                )
                continue
            news = moved.get(request.asked.request_id)
            if news is None:
                news = moved[request.asked.request_id] = request.news()
            news.outputs.append(delta)
            news.error = news.error or output.error
            if delta.finish_reason is not None:
                self._end(choice, delta.finish_reason, now, stats)
                if output.finish_reason is None:
                    aborts.append(choice.core_id)
        for request_id, news in moved.items():
            self._deliver(request_id, news)
        self._record(stats)
        return aborts

    def abort(self, request_id: str, error: str | None = None, reason: FinishReason = "abort") -> list[str]:
        """End a request here and now; its sink gets what text was held back. Nothing happens if it has ended.

        Returns:
            Ids to abort in the core.
        """
        request = self._requests.get(request_id)
        if request is None:
            return []
        now, stats, news = self._clock(), IterationStats(), request.news()
        choices = list(request.choices.values())
        for choice in choices:
            news.outputs.append(
                CompletionOutput(choice.index, choice.text.finish(), [], finish_reason=reason)
            )
            self._end(choice, reason, now, stats)
        news.error = error
        self._deliver(request_id, news)
        self._record(stats)
        return [choice.core_id for choice in choices]

    def _advance(
        self, choice: _Choice, output: EngineCoreOutput, now: float, stats: IterationStats
    ) -> CompletionOutput:
        """The delta that a core output makes; ends where a stop string does, whatever tokens follow."""
        delta = CompletionOutput(
            choice.index, finish_reason=output.finish_reason, stop_reason=output.stop_reason
        )
        tokens = output.new_token_ids
        # The token that ends an answer is counted, but is no part of its text.
        num_text = len(tokens) - (output.finish_reason == "stop")
        min_tokens = choice.request.asked.params.min_tokens
        num_taken = 0
        for token in tokens:
            num_taken += 1
            if num_taken > num_text:
                break
            may_stop = choice.num_tokens + num_taken > min_tokens
            text, stop = choice.text.push((token,), may_stop=may_stop)
            delta.text += text
            if stop is not None:
                delta.finish_reason, delta.stop_reason = "stop", stop
                break
        if delta.finish_reason is not None:
            delta.text += choice.text.finish()
        delta.token_ids = tokens[:num_taken]
        if output.logprobs is not None:
            delta.logprobs = self._logprobs.read(delta.token_ids, output.logprobs)
        self._count(choice, output, num_taken, now, stats)
        return delta

    def _count(
        self, choice: _Choice, output: EngineCoreOutput, num_tokens: int, now: float, stats: IterationStats
    ) -> None:
        """Enter an output's tokens and times into the books."""
        request = choice.request
        choice.num_preemptions = output.num_preemptions
        if output.num_cached_tokens:
            choice.num_cached_tokens = output.num_cached_tokens
            if choice.index == 0:
                request.num_cached_tokens = output.num_cached_tokens
        if output.queued_seconds is not None:
            choice.queue_seconds, choice.prefill_seconds = output.queued_seconds, output.prefill_seconds
        if num_tokens == 0:
            return
        choice.num_tokens += num_tokens
        stats.num_generation_tokens += num_tokens
        if choice.first_token is None:
            choice.first_token = choice.last_token = now
            stats.first_token_seconds.append(now - request.arrival)
            num_tokens -= 1
        if num_tokens:
            # Tokens that came together share the time since those before them.
            stats.inter_token_seconds += [(now - choice.last_token) / num_tokens] * num_tokens
            choice.last_token = now
        if not request.prompt_counted:
            request.prompt_counted = True
            stats.num_prompt_tokens += len(request.asked.prompt_token_ids)
            stats.num_cached_tokens += choice.num_cached_tokens

    def _end(self, choice: _Choice, reason: FinishReason, now: float, stats: IterationStats) -> None:
        """Close the books of one choice."""
        request = choice.request
        del self._choices[choice.core_id]
        del request.choices[choice.index]
        first = choice.first_token
        stats.finished.append(
            RequestStats(
                request_id=request.asked.request_id,
                index=choice.index,
                finish_reason=reason,
                num_prompt_tokens=len(request.asked.prompt_token_ids),
                num_cached_tokens=choice.num_cached_tokens,
                num_generation_tokens=choice.num_tokens,
                max_tokens=request.asked.max_tokens,
                n=request.asked.params.n,
                num_preemptions=choice.num_preemptions,
                queue_seconds=choice.queue_seconds,
                prefill_seconds=choice.prefill_seconds,
                first_token_seconds=None if first is None else first - request.arrival,
                decode_seconds=None if first is None else choice.last_token - first,
                e2e_seconds=now - request.arrival,
            )
        )

    def _deliver(self, request_id: str, news: RequestOutput) -> None:
        request = self._requests[request_id]
        news.num_cached_tokens = request.num_cached_tokens
        if not request.choices:
            news.finished = True
            del self._requests[request_id]
        request.sink(news)

    def _record(self, stats: IterationStats) -> None:
        if self._stat_logger is None:
            return
        try:
            self._stat_logger.record(stats)
        except Exception:
            logger.exception("statistics could not be recorded")
