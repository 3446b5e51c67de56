"""Which requests compute how many tokens at the next step.

There are no phases: every running request is behind its own tokens by one (a decode) or by more (a prompt, or
prompt and output of a request that resumes), and a step lets each catch up by as much as there is room for.

Order. Everything goes by rank: priority, then arrival. Requests are admitted strictly in that order: where
the first in the queue does not fit, nobody overtakes it, so a long prompt cannot be starved by short ones.
It waits at the longest until those running have ended, since every request fits into the empty pool (checked
when added). A waiting request never preempts a running one.

Room. A request is admitted with blocks for all tokens it has, so a prompt never stops half-way for want of
blocks; from then on it takes a block each time one is full. If there is none, a request ranked no higher
gives way (``preemption.choose_victim``), keeps its tokens, and computes them again when its turn comes.

Shared prompts. Where several requests lack the same blocks, as the choices of one request do, the first in
rank computes them. The others have them in their tables already (``kvcache.promises``) and get no tokens
until they are there; if the first one ends early, the next goes on.

``schedule`` promises nothing to the future: it moves ``num_computed_tokens`` only over what others have
computed. A step that never ran can be planned again.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from operator import attrgetter

from rooftree.errors import RequestError
from rooftree.kvcache.manager import KVCacheManager
from rooftree.scheduler.admission import validate_capacity
from rooftree.scheduler.config import SchedulerConfig
from rooftree.scheduler.output import ModelRunnerOutput, ScheduledRequest, SchedulerOutput, Shortage
from rooftree.scheduler.preemption import choose_victim
from rooftree.scheduler.queue import RequestQueue
from rooftree.scheduler.request import Request, RequestStatus
from rooftree.scheduler.stop import check_stop
from rooftree.scheduler.update import RequestUpdate, SchedulerSnapshot

_by_rank = attrgetter("rank")


class _Step:
    """A plan being made: what is scheduled so far, and how many tokens are left to give out."""

    __slots__ = ("budget", "num_scheduled_tokens", "requests")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.requests: list[ScheduledRequest] = []
        self.num_scheduled_tokens: dict[str, int] = {}

    def room(self, request: Request) -> int:
        """How much of what the request lacks the budget allows."""
        return min(len(request.token_ids) - request.num_computed_tokens, self.budget)

    def add(self, request: Request, block_ids: list[int], num_tokens: int) -> None:
        """Schedule the next ``num_tokens`` of what the request lacks."""
        start = request.num_computed_tokens
        self.budget -= num_tokens
        self.num_scheduled_tokens[request.request_id] = num_tokens
        self.requests.append(
            ScheduledRequest(
                request.request_id,
                request.token_ids,
                request.num_prompt_tokens,
                start,
                num_tokens,
                block_ids,
                start + num_tokens == len(request.token_ids),
                request.params,
                request.seed,
                request.banned_token_ids,
            )
        )


class Scheduler:
    """Requests waiting and running, and the blocks they hold.

    Args:
        clock: monotonic seconds; the simulator hands in its own.
    """

    def __init__(self, config: SchedulerConfig, kv_cache: KVCacheManager, clock: Callable[[], float]) -> None:
        self.config = config
        self.kv_cache = kv_cache
        self.requests: dict[str, Request] = {}
        self._waiting = RequestQueue()
        self._running: list[Request] = []
        self._clock = clock
        self._num_arrived = 0
        self._prefix_queries = 0
        self._prefix_hits = 0
        self._num_preemptions = 0
        self._num_preempted_tokens = 0

    @property
    def has_unfinished(self) -> bool:
        """Whether any request waits or runs; exactly then ``schedule`` returns a step."""
        return bool(self.requests)

    def add_request(self, request: Request) -> None:
        """Let a new request wait for its turn.

        Raises:
            RequestError: it could never run, or its id is in use; nothing has changed.
        """
        self._validate(request)
        request.rank = (request.priority, self._num_arrived)
        request.arrived = self._clock()
        self._num_arrived += 1
        self.requests[request.request_id] = request
        self._waiting.add(request)

    def _validate(self, request: Request) -> None:
        num_prompt, limit = request.num_prompt_tokens, self.config.max_model_len
        if request.request_id in self.requests:
            raise RequestError(f"request id {request.request_id!r} is in use", param="request_id", status=409)
        if request.priority != 0 and self.config.policy != "priority":
            raise RequestError(
                f"priority {request.priority} is asked of a server that runs requests in order of arrival; "
                "leave it out, or start the server with --scheduling-policy priority",
                param="priority",
            )
        if num_prompt < 1 or request.max_tokens < 1:
            raise RequestError(
                f"{num_prompt} prompt tokens and max_tokens={request.max_tokens}: both must be positive"
            )
        if num_prompt + request.max_tokens > limit:
            raise RequestError(
                f"{num_prompt} prompt tokens and max_tokens={request.max_tokens} exceed the context window "
                f"of {limit} tokens",
                param="max_tokens",
                code="context_length_exceeded",
            )
        pool = self.kv_cache.pool
        validate_capacity(num_prompt, request.max_tokens, pool.num_total, self.kv_cache.block_size)

    def abort(self, request_id: str) -> RequestUpdate | None:
        """End a request that is no longer wanted.

        Returns:
            Its last news, or None where the id is unknown: it may just have ended.
        """
        request = self.requests.get(request_id)
        if request is None:
            return None
        self.finish(request, RequestStatus.FINISHED_ABORTED)
        return self._news(request, [])

    def finish(self, request: Request, status: RequestStatus) -> None:
        """End a request: the only way out. A request that has ended already stays as it is."""
        if request.is_finished:
            return
        if request.status is RequestStatus.RUNNING:
            self._running.remove(request)
            self.kv_cache.free(request)
        else:
            self._waiting.remove(request)
        request.status = status
        del self.requests[request.request_id]

    def schedule(self) -> SchedulerOutput | None:
        """Plan the next step: decodes, prompts in progress, new requests. None if nothing is left to do."""
        step = _Step(self.config.max_num_batched_tokens)
        num_preemptions = self._num_preemptions
        shortage = self._schedule_running(step)
        shortage = self._admit_waiting(step) or shortage
        if not step.requests:
            return None
        if self._num_preemptions > num_preemptions:
            shortage = "blocks"
        total = self.config.max_num_batched_tokens - step.budget
        return SchedulerOutput(step.requests, step.num_scheduled_tokens, total, shortage)

    def _schedule_running(self, step: _Step) -> Shortage | None:
        """Schedule those running by rank, decodes first; "tokens" if some of them were left out."""
        prompts: list[Request] = []
        for request in self._running.copy():
            if request.status is not RequestStatus.RUNNING:
                continue  # It gave way to one ranked before it; those already passed can not be victims.
            if len(request.token_ids) - request.num_computed_tokens > 1 or self.kv_cache.must_claim(request):
                prompts.append(request)
            elif (block_ids := self._grow(request)) is not None:
                step.add(request, block_ids, 1)
        for request in prompts:
            if not step.budget:
                return "tokens"
            self._catch_up(request)
            num_tokens = self.kv_cache.claim(request, step.room(request))
            if num_tokens:
                step.add(request, self.kv_cache.block_ids(request.request_id), num_tokens)
        return None

    def _catch_up(self, request: Request) -> None:
        """Take over what others have computed of the blocks that they share with a request."""
        num_computed = self.kv_cache.catch_up(request)
        if not request.num_preemptions:
            self._prefix_hits += num_computed - request.num_computed_tokens
        request.num_computed_tokens = num_computed

    def _grow(self, request: Request) -> list[int] | None:
        """The request's block table with room for one more token, or None if it had to give way itself."""
        while (block_ids := self.kv_cache.allocate_slots(request, 1)) is None:
            victim = choose_victim(self._running, request)
            self._preempt(victim)
            if victim is request:
                return None
        return block_ids

    def _preempt(self, victim: Request) -> None:
        self._num_preemptions += 1
        self._num_preempted_tokens += victim.num_computed_tokens
        self._running.remove(victim)
        self.kv_cache.free(victim)
        victim.num_computed_tokens = 0
        victim.num_preemptions += 1
        victim.status = RequestStatus.PREEMPTED
        self._waiting.add(victim)

    def _admit_waiting(self, step: _Step) -> Shortage | None:
        """Start waiting requests in order, until seats, tokens or blocks run out; which of them did."""
        while self._waiting:
            if len(self._running) >= self.config.max_num_seqs:
                return "seats"
            if not step.budget:
                return "tokens"
            request = self._waiting.peek()
            keep_watermark = bool(self._running)
            if self.kv_cache.is_still_refused(request, admitting=keep_watermark):
                return "blocks"
            computed = self.kv_cache.get_computed_blocks(request)
            num_new = len(request.token_ids) - computed.num_tokens
            block_ids = self.kv_cache.allocate_slots(request, num_new, computed, admitting=keep_watermark)
            if block_ids is None:
                return "blocks"
            self._start(self._waiting.pop(), computed.num_tokens)
            # Blocks that others are computing at this very step are there at the next one.
            if not computed.is_awaited:
                step.add(request, block_ids, step.room(request))
        return None

    def _start(self, request: Request, num_computed_tokens: int) -> None:
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = num_computed_tokens
        insort(self._running, request, key=_by_rank)
        if request.first_scheduled is None:
            request.first_scheduled = self._clock()
            request.num_cached_tokens = num_computed_tokens
            if self.kv_cache.enable_prefix_caching:
                self._prefix_queries += request.num_prompt_tokens
                self._prefix_hits += num_computed_tokens

    def update_from_output(self, output: SchedulerOutput, result: ModelRunnerOutput) -> list[RequestUpdate]:
        """Take in what a step computed. Requests that ended since it was planned are passed over.

        Returns:
            News of each request that got a token or ended.
        """
        updates: list[RequestUpdate] = []
        for scheduled in output.requests:
            request = self.requests.get(scheduled.request_id)
            # The list tells a request from a later one under the same id.
            if request is None or request.token_ids is not scheduled.token_ids:
                continue
            error = result.errors.get(scheduled.request_id)
            if error is not None:
                self.finish(request, RequestStatus.FINISHED_ERROR)
                update = self._news(request, [])
                update.error = error
                updates.append(update)
                continue
            request.num_computed_tokens = scheduled.start + scheduled.num_tokens
            self.kv_cache.publish(request)
            if scheduled.samples:
                updates.append(self._append(request, result))
        return updates

    def _append(self, request: Request, result: ModelRunnerOutput) -> RequestUpdate:
        token = result.sampled_token_ids[request.request_id]
        request.token_ids.append(token)
        stop = check_stop(request, self.config.max_model_len)
        if stop is not None:
            self.finish(request, stop.status)
        update = self._news(request, [token])
        update.logprobs = result.logprobs.get(request.request_id)
        if stop is not None:
            update.stop_reason = stop.token_id
        if request.first_token is None and request.first_scheduled is not None:
            request.first_token = self._clock()
            update.queued_seconds = request.first_scheduled - request.arrived
            update.prefill_seconds = request.first_token - request.first_scheduled
        return update

    def _news(self, request: Request, new_token_ids: list[int]) -> RequestUpdate:
        return RequestUpdate(
            request.request_id,
            new_token_ids,
            None,
            request.status.finish_reason,
            None,
            request.num_cached_tokens,
            request.num_preemptions,
        )

    def stats(self) -> SchedulerSnapshot:
        """State now and totals since start."""
        pool = self.kv_cache.pool
        return SchedulerSnapshot(
            num_running=len(self._running),
            num_waiting=len(self._waiting),
            num_free_blocks=pool.num_free,
            num_cached_blocks=pool.num_cached,
            num_owned_blocks=pool.num_owned,
            num_total_blocks=pool.num_total,
            prefix_cache_queries=self._prefix_queries,
            prefix_cache_hits=self._prefix_hits,
            num_preemptions=self._num_preemptions,
            num_preempted_tokens=self._num_preempted_tokens,
        )

    def check_conservation(self) -> list[str]:
        """Recompute from the owners what must always hold: a sentence for each fault, none if all is well."""
        faults = self.kv_cache.audit()
        running = {request.request_id for request in self._running}
        holders = set(self.kv_cache.request_ids)
        faults += [f"request {r} holds blocks but does not run" for r in sorted(holders - running)]
        faults += [f"request {r} runs but holds no blocks" for r in sorted(running - holders)]
        if len(self._running) + len(self._waiting) != len(self.requests):
            faults.append(
                f"{len(self.requests)} requests, but {len(self._running)} run and {len(self._waiting)} wait"
            )
        return faults
