"""The numbers behind /metrics: statistics go in here, ``rooftree.server.exposition`` writes them out."""

from __future__ import annotations

from collections import Counter

from rooftree.engine.messages import SchedulerStats
from rooftree.engine.stats import IterationStats, RequestStats
from rooftree.errors import RequestError
from rooftree.server.histogram import SECONDS, SMALL_NUMBERS, TOKENS, Histogram
from rooftree.server.recent import Recent

FINISH_REASONS = ("stop", "length", "abort", "error")


class Metrics:
    """The numbers of one served model since its start. A ``StatLogger``; lives on the event loop's thread.

    What counts, exactly, stands in ``rooftree.engine.stats``. ``refusals`` counts error answers by code.
    """

    def __init__(self, model_name: str) -> None:
        self.model_name = model_name
        self.scheduler = SchedulerStats()
        self.recent = Recent()
        self.block_size = 0
        self.num_blocks = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.generation_tokens = 0
        self.finished: Counter[str] = Counter(dict.fromkeys(FINISH_REASONS, 0))
        self.refusals: Counter[str] = Counter()
        self.first_token = Histogram(SECONDS)
        self.inter_token = Histogram(SECONDS)
        self.time_per_output_token = Histogram(SECONDS)
        self.e2e = Histogram(SECONDS)
        self.queue = Histogram(SECONDS)
        self.inference = Histogram(SECONDS)
        self.prefill = Histogram(SECONDS)
        self.decode = Histogram(SECONDS)
        self.request_prompt_tokens = Histogram(TOKENS)
        self.request_generation_tokens = Histogram(TOKENS)
        self.request_max_tokens = Histogram(TOKENS)
        self.request_n = Histogram(SMALL_NUMBERS)
        self.request_preemptions = Histogram(SMALL_NUMBERS)

    def engine_ready(self, block_size: int, num_blocks: int) -> None:
        """What the engine's memory came to; until its first step all of it is free."""
        self.block_size, self.num_blocks = block_size, num_blocks
        if self.scheduler.num_total_blocks == 0:
            self.scheduler = SchedulerStats(num_free_blocks=num_blocks, num_total_blocks=num_blocks)

    def refused(self, error: RequestError) -> None:
        """A request was answered with an error."""
        self.refusals[error.code or f"http_{error.status}"] += 1

    def record(self, stats: IterationStats) -> None:
        """Take in what a step, or an event at the front end, added."""
        self.prompt_tokens += stats.num_prompt_tokens
        self.cached_tokens += stats.num_cached_tokens
        self.generation_tokens += stats.num_generation_tokens
        self.first_token.observe_all(stats.first_token_seconds)
        self.inter_token.observe_all(stats.inter_token_seconds)
        for request in stats.finished:
            self._record_finished(request)
        if stats.scheduler is not None:
            self.scheduler = stats.scheduler
            self.recent.add(stats.scheduler.steps)

    def _record_finished(self, request: RequestStats) -> None:
        self.finished[request.finish_reason] += 1
        self.e2e.observe(request.e2e_seconds)
        self.request_prompt_tokens.observe(request.num_prompt_tokens)
        self.request_generation_tokens.observe(request.num_generation_tokens)
        self.request_max_tokens.observe(request.max_tokens)
        self.request_n.observe(request.n)
        self.request_preemptions.observe(request.num_preemptions)
        if request.queue_seconds is not None:
            self.queue.observe(request.queue_seconds)
        if request.prefill_seconds is not None:
            self.prefill.observe(request.prefill_seconds)
        if request.decode_seconds is not None:
            self.decode.observe(request.decode_seconds)
            self.inference.observe((request.prefill_seconds or 0.0) + request.decode_seconds)
            if request.num_generation_tokens > 1:
                per_token = request.decode_seconds / (request.num_generation_tokens - 1)
                self.time_per_output_token.observe(per_token)
