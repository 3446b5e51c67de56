"""The step loop's body: schedule, execute, update. No text, no sockets, no threads."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from time import perf_counter

from rooftree.engine.config import EngineConfig
from rooftree.engine.executors.base import Executor
from rooftree.engine.messages import (
    EngineCoreOutput,
    EngineCoreOutputs,
    EngineCoreRequest,
    SchedulerStats,
    TopLogprobs,
)
from rooftree.engine.stats import StepRecord
from rooftree.engine.telemetry import Telemetry
from rooftree.errors import RequestError
from rooftree.scheduler.request import Request
from rooftree.scheduler.scheduler import Scheduler
from rooftree.scheduler.update import RequestUpdate

logger = logging.getLogger(__name__)


class EngineCore:
    """One model's scheduler and executor, a step at a time. For one thread.

    Args:
        clock: monotonic seconds, for the record of each step.
        telemetry: holds each step against the cost model; closed with the engine. None: without a model.
    """

    def __init__(
        self,
        config: EngineConfig,
        executor: Executor,
        scheduler: Scheduler,
        clock: Callable[[], float] = perf_counter,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.config = config
        self.executor = executor
        self.scheduler = scheduler
        self._clock = clock
        self._refused: list[EngineCoreOutput] = []
        self._telemetry = telemetry or Telemetry()
        self._audited = True
        self._conservation_failures = 0

    @property
    def last_step(self) -> StepRecord | None:
        """Record of the last step that computed something."""
        return self._telemetry.last_step

    @property
    def has_unfinished_requests(self) -> bool:
        """Whether ``step`` has something to do or to tell."""
        return self.scheduler.has_unfinished or bool(self._refused)

    def add_request(self, request: EngineCoreRequest) -> None:
        """Queue one generation. One that can never run ends with an error at the next step."""
        try:
            self.scheduler.add_request(
                Request(
                    request_id=request.request_id,
                    token_ids=request.prompt_token_ids.copy(),
                    params=request.params,
                    max_tokens=request.max_tokens,
                    seed=request.seed,
                    eos_token_ids=request.eos_token_ids,
                    priority=request.priority,
                    cache_salt=request.cache_salt,
                )
            )
        except RequestError as error:
            self._refused.append(
                EngineCoreOutput(request.request_id, [], finish_reason="error", error=error.message)
            )

    def abort_requests(self, request_ids: Iterable[str]) -> None:
        """End these generations; unknown ids are ignored.

        To be called between steps, in the order in which adds and aborts came: an abort never meets a later
        request of the same id. It is the caller's own doing, so no output tells of it.
        """
        for request_id in request_ids:
            self.scheduler.abort(request_id)
        if not self.scheduler.has_unfinished:
            self._telemetry.rest()

    @property
    def progress(self) -> tuple[int, int]:
        """Changes whenever work gets on, inside of a step too; for any thread."""
        return self._telemetry.totals.num_steps, self.executor.progress

    def step(self) -> EngineCoreOutputs:
        """Advance every request that has its turn, and tell the news; idle, tell the state alone.

        Raises:
            Exception: whatever the executor raises; the engine cannot go on after it.
        """
        start = self._clock()
        outputs, self._refused = self._refused, []
        planned = self.scheduler.schedule()
        if planned is None:
            self._telemetry.rest()
            self._audit()
        else:
            result = self.executor.execute(planned)
            for update in self.scheduler.update_from_output(planned, result):
                outputs.append(_output(update))
            self._audited = False
            self._telemetry.note(
                planned,
                start,
                self._clock(),
                self.executor.last_native_seconds,
                goes_on=self.scheduler.has_unfinished,
            )
        return EngineCoreOutputs(outputs, self.stats())

    def _audit(self) -> None:
        """Check the conservation of blocks, once each time that the engine comes to rest."""
        if self._audited:
            return
        self._audited = True
        for fault in self.scheduler.check_conservation():
            self._conservation_failures += 1
            logger.warning("KV blocks are not conserved: %s", fault)

    def stats(self) -> SchedulerStats:
        """State now and totals since start."""
        state = self.scheduler.stats()
        return SchedulerStats(
            num_running=state.num_running,
            num_waiting=state.num_waiting,
            num_free_blocks=state.num_free_blocks,
            num_cached_blocks=state.num_cached_blocks,
            num_owned_blocks=state.num_owned_blocks,
            num_total_blocks=state.num_total_blocks,
            prefix_cache_queries=state.prefix_cache_queries,
            prefix_cache_hits=state.prefix_cache_hits,
            num_preemptions=state.num_preemptions,
            num_preempted_tokens=state.num_preempted_tokens,
            conservation_failures=self._conservation_failures,
            steps=self._telemetry.totals,
        )

    def close(self) -> None:
        """Give memory and threads back; idempotent."""
        self.executor.close()
        self._telemetry.close()


def _output(update: RequestUpdate) -> EngineCoreOutput:
    logprobs = update.logprobs
    return EngineCoreOutput(
        update.request_id,
        update.new_token_ids,
        None
        if logprobs is None
        else [TopLogprobs(logprobs.logprob, logprobs.rank, logprobs.top_ids, logprobs.top_logprobs)],
        update.finish_reason,
        update.stop_reason,
        update.num_cached_tokens,
        update.num_preemptions,
        update.queued_seconds,
        update.prefill_seconds,
        update.error,
    )
