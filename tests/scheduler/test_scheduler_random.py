"""Whatever comes and goes in whatever order: blocks are conserved, answers depend on their requests alone."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)
from scheduler_rig import GREEDY, VOCAB, Rig, digests, solo

from rooftree.kvcache.prefix import PrefixHasher
from rooftree.sampling.params import SamplingParams
from rooftree.scheduler.output import ModelRunnerOutput
from rooftree.scheduler.request import Request, RequestStatus
from rooftree.scheduler.update import RequestUpdate

tokens = st.integers(0, VOCAB - 1)
# Few families and a small alphabet, so that prompts often share prefixes that end anywhere in a block.
families = st.lists(st.integers(0, 1), min_size=1, max_size=24)


class Tracked:
    """A request with what must come of it."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.prompt = list(request.token_ids)
        self.expected, self.reason = solo(request)
        self.output: list[int] = []
        self.end: str | None = None


class SchedulerMachine(RuleBasedStateMachine):
    """Random loads on tiny pools."""

    ids = Bundle("ids")

    @initialize(
        num_blocks=st.integers(3, 14),
        block_size=st.integers(1, 5),
        max_num_seqs=st.integers(1, 5),
        spare_budget=st.integers(0, 20),
        watermark=st.sampled_from([0.0, 0.1, 0.5]),
        caching=st.booleans(),
        policy=st.sampled_from(["fcfs", "priority"]),
    )
    def start(
        self,
        num_blocks: int,
        block_size: int,
        max_num_seqs: int,
        spare_budget: int,
        watermark: float,
        caching: bool,
        policy: str,
    ) -> None:
        """Choose an engine."""
        self.rig = Rig(
            num_blocks=num_blocks,
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + spare_budget,
            policy=policy,
            watermark=watermark,
            enable_prefix_caching=caching,
        )
        self.live: dict[str, Tracked] = {}
        self.all: list[Tracked] = []
        self.contents: dict[bytes, list[int]] = {}

    @rule(
        target=ids,
        prompt=families,
        tail=st.lists(tokens, max_size=4),
        max_tokens=st.integers(1, 20),
        min_tokens=st.integers(0, 6),
        stops=st.lists(tokens, max_size=3),
        eos=st.lists(tokens, max_size=2),
        ignore_eos=st.booleans(),
        salt=st.sampled_from(["", "", "other"]),
        priority=st.integers(-1, 1),
        seed=st.integers(0, 3),
    )
    def submit(
        self,
        prompt: list[int],
        tail: list[int],
        max_tokens: int,
        min_tokens: int,
        stops: list[int],
        eos: list[int],
        ignore_eos: bool,
        salt: str,
        priority: int,
        seed: int,
    ) -> object:
        """A new request, cut to what the pool can hold."""
        room = self.rig.kv_cache.num_tokens
        prompt = (prompt + tail)[: room - 1]
        max_tokens = min(max_tokens, room - len(prompt))
        params = SamplingParams(
            min_tokens=min(min_tokens, max_tokens), stop_token_ids=tuple(stops), ignore_eos=ignore_eos
        )
        self._add(
            Request(
                request_id=f"r{len(self.all)}",
                token_ids=prompt,
                params=params,
                max_tokens=max_tokens,
                seed=seed,
                eos_token_ids=tuple(eos),
                cache_salt=salt,
                priority=priority if self.rig.policy == "priority" else 0,
            )
        )
        return f"r{len(self.all) - 1}"

    @precondition(lambda self: self.all)
    @rule(target=ids, data=st.data(), length=st.integers(1, 40), count=st.integers(1, 3))
    def submit_alike(self, data: st.DataObject, length: int, count: int) -> object:
        """The beginning of an earlier request's tokens again, several times at once."""
        model = data.draw(st.sampled_from(self.all)).request
        prompt = model.token_ids[: min(length, self.rig.kv_cache.num_tokens - 2)]
        priority = data.draw(st.integers(-1, 1)) if self.rig.policy == "priority" else 0
        names = [f"r{len(self.all) + i}" for i in range(count)]
        for seed, name in enumerate(names):
            self._add(
                Request(
                    request_id=name,
                    token_ids=prompt.copy(),
                    params=GREEDY,
                    max_tokens=min(8, self.rig.kv_cache.num_tokens - len(prompt)),
                    seed=seed,
                    cache_salt=model.cache_salt,
                    priority=priority,
                )
            )
        return multiple(*names)

    def _add(self, request: Request) -> None:
        tracked = Tracked(request)
        self.rig.scheduler.add_request(request)
        self.live[request.request_id] = tracked
        self.all.append(tracked)

    @rule()
    def step(self) -> None:
        """Plan, execute, update."""
        output = self.rig.scheduler.schedule()
        assert (output is not None) == bool(self.live)
        if output is not None:
            self._take(self.rig.scheduler.update_from_output(output, self.rig.model.execute(output)))

    @rule(steps=st.integers(2, 12))
    def run(self, steps: int) -> None:
        """Several steps at once, to get far enough for preemption."""
        for _ in range(steps):
            self.step()
            assert self.rig.scheduler.check_conservation() == []

    @precondition(lambda self: self.live)
    @rule()
    def lose_a_step(self) -> None:
        """A step is planned but never run."""
        assert self.rig.scheduler.schedule() is not None

    @rule(request_id=consumes(ids))
    def abort(self, request_id: str) -> None:
        """A client leaves between two steps, or after the end."""
        self._abort(request_id)
        self._abort(request_id)

    @rule(leaving=st.lists(consumes(ids), min_size=1, max_size=3), again=st.booleans())
    def abort_in_flight(self, leaving: list[str], again: bool) -> None:
        """Clients leave while a step runs; one may come back under its old id before the step ends."""
        output = self.rig.scheduler.schedule()
        result = self.rig.model.execute(output) if output is not None else ModelRunnerOutput({})
        for request_id in leaving:
            self._abort(request_id)
        if again:
            old = next(t.request for t in reversed(self.all) if t.request.request_id == leaving[0])
            self._add(
                Request(
                    request_id=old.request_id,
                    token_ids=old.token_ids[: old.num_prompt_tokens],
                    params=old.params,
                    max_tokens=old.max_tokens,
                    seed=old.seed + 1,
                    eos_token_ids=old.eos_token_ids,
                )
            )
        if output is not None:
            self._take(self.rig.scheduler.update_from_output(output, result))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def fail_one(self, data: st.DataObject) -> None:
        """The logits of one request of a step are not finite."""
        output = self.rig.scheduler.schedule()
        assert output is not None
        victim = data.draw(st.sampled_from(sorted(output.num_scheduled_tokens)))
        result = self.rig.model.execute(output)
        tokens = {r: t for r, t in result.sampled_token_ids.items() if r != victim}
        failed = ModelRunnerOutput(tokens, errors={victim: "logits are not finite"})
        self._take(self.rig.scheduler.update_from_output(output, failed))
        assert victim not in self.live

    def _abort(self, request_id: str) -> None:
        update = self.rig.scheduler.abort(request_id)
        assert (update is not None) == (request_id in self.live)
        if update is not None:
            self._take([update])

    def _take(self, updates: list[RequestUpdate]) -> None:
        for update in updates:
            tracked = self.live[update.request_id]
            tracked.output += update.new_token_ids
            if update.queued_seconds is not None:
                self._check_cached(tracked, update.num_cached_tokens)
            if update.finish_reason is not None:
                assert tracked.end is None
                tracked.end = update.finish_reason
                self._check_end(tracked)
                del self.live[update.request_id]

    def _check_end(self, tracked: Tracked) -> None:
        assert tracked.request.is_finished
        assert tracked.output == tracked.expected[: len(tracked.output)]
        if tracked.end in ("stop", "length"):
            assert (tracked.output, tracked.end) == (tracked.expected, tracked.reason)
            assert len(tracked.output) >= tracked.request.params.min_tokens

    def _check_cached(self, tracked: Tracked, num_cached: int) -> None:
        others = [
            t for t in self.all if t is not tracked and t.request.cache_salt == tracked.request.cache_salt
        ]
        longest = max((common(tracked.prompt, t.request.token_ids) for t in others), default=0)
        assert num_cached <= min(longest, len(tracked.prompt) - 1)
        assert num_cached % self.rig.block_size == 0

    @invariant()
    def blocks_are_conserved(self) -> None:
        """Free, cached and owned blocks make up the pool, recomputed from the owners."""
        assert self.rig.scheduler.check_conservation() == []

    @invariant()
    def published_blocks_hold_what_they_claim(self) -> None:
        """Every hash in the index stands for the tokens whose digests lie in the block."""
        size = self.rig.block_size
        hasher = PrefixHasher("fake", size)
        for tracked in self.all:
            ids, salt = tracked.request.token_ids, tracked.request.cache_salt
            hashes: list[bytes] = []
            hasher.extend(hashes, ids, len(ids) // size, salt)
            expected = digests(ids)
            for i, block_hash in enumerate(hashes):
                self.contents[block_hash] = expected[i * size : (i + 1) * size]
        for block in self.rig.kv_cache.pool.published():
            assert self.rig.model.block(block.block_id) == self.contents[block.block_hash]

    @invariant()
    def states_agree(self) -> None:
        """Whoever has not ended waits or runs, and what runs is within the limits."""
        running = [t.request for t in self.live.values() if t.request.status is RequestStatus.RUNNING]
        assert len(running) <= self.rig.max_num_seqs
        assert self.rig.scheduler.stats().num_running == len(running)
        assert set(self.rig.scheduler.requests) == set(self.live)
        stats = self.rig.scheduler.stats()
        assert stats.prefix_cache_hits <= stats.prefix_cache_queries

    def teardown(self) -> None:
        """Everyone comes to an end within bounded steps, and all blocks come back."""
        if not hasattr(self, "rig"):
            return
        work = sum(len(t.prompt) + t.request.max_tokens + 1 for t in self.live.values())
        bound = work if self.rig.policy == "fcfs" else work * max(1, len(self.live))
        for _ in range(bound):
            if not self.live:
                break
            self.step()
            assert self.rig.scheduler.check_conservation() == []
        assert not self.live
        assert self.rig.scheduler.schedule() is None
        stats = self.rig.scheduler.stats()
        assert (stats.num_running, stats.num_waiting, stats.num_owned_blocks) == (0, 0, 0)
        assert stats.num_free_blocks + stats.num_cached_blocks == stats.num_total_blocks
        assert all(t.end is not None for t in self.all)


def common(a: list[int], b: list[int]) -> int:
    """Length of the common prefix."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)
