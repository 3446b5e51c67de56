"""A model without weights, for tests of the scheduler: it depends on K and V as a real one does.

The "K and V" of a token are a digest of all tokens up to it, written where the block table points. Each step
reads back every earlier slot of its request and checks it, and the next token depends on the last digest: a
block shared, reused or published wrongly shows at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate

from rooftree.kvcache.manager import KVCacheManager
from rooftree.sampling.params import SamplingParams
from rooftree.scheduler.config import SchedulerConfig
from rooftree.scheduler.output import ModelRunnerOutput, ScheduledRequest, SchedulerOutput
from rooftree.scheduler.request import Request
from rooftree.scheduler.scheduler import Scheduler
from rooftree.scheduler.update import RequestUpdate

VOCAB = 40
GREEDY = SamplingParams(temperature=0.0)


def digests(token_ids: list[int]) -> list[int]:
    """Digest of every prefix: item i covers tokens 0 to i."""
    return list(accumulate(token_ids, lambda state, token: hash((state, token)), initial=0))[1:]


def next_token(
    state: int, seed: int, num_output_tokens: int, banned: tuple[int, ...] | frozenset[int]
) -> int:
    """The model's choice after a prefix, passing over banned tokens."""
    token = hash((state, seed, num_output_tokens)) % VOCAB
    while token in banned:
        token = (token + 1) % VOCAB
    return token


def solo(request: Request) -> tuple[list[int], str]:
    """Output and finish reason of a fresh request that has the world to itself."""
    params = request.params
    eos = () if params.ignore_eos else request.eos_token_ids
    ending = frozenset(eos) | frozenset(params.stop_token_ids)
    output: list[int] = []
    state = digests(request.token_ids)[-1]
    while len(output) < request.max_tokens:
        banned = ending if len(output) < params.min_tokens else frozenset()
        output.append(next_token(state, request.seed, len(output), banned))
        state = hash((state, output[-1]))
        if output[-1] in ending:
            return output, "stop"
    return output, "length"


class FakeModel:
    """An executor over a pool of slots."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.written: set[int] = set()
        self.slots: list[int | None] = [None] * (num_blocks * block_size)

    def block(self, block_id: int) -> list[int | None]:
        """What the slots of a block hold."""
        return self.slots[block_id * self.block_size : (block_id + 1) * self.block_size]

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Compute a step: check what is read, write what is new, choose tokens."""
        self.written.clear()
        return ModelRunnerOutput({r.request_id: self._run(r) for r in output.requests if self._write(r)})

    def _slot(self, request: ScheduledRequest, position: int) -> int:
        return request.block_ids[position // self.block_size] * self.block_size + position % self.block_size

    def _write(self, request: ScheduledRequest) -> bool:
        end = request.start + request.num_tokens
        assert request.num_tokens > 0
        assert end <= len(request.token_ids)
        assert request.samples == (end == len(request.token_ids))
        expected = digests(request.token_ids)
        found = [self.slots[self._slot(request, p)] for p in range(request.start)]
        assert found == expected[: request.start], (
            f"{request.request_id}: wrong K and V below {request.start}"
        )
        for position in range(request.start, end):
            slot = self._slot(request, position)
            assert slot not in self.written, f"{request.request_id}: two write a slot in one step"
            self.written.add(slot)
            self.slots[slot] = expected[position]
        return request.samples

    def _run(self, request: ScheduledRequest) -> int:
        state = self.slots[self._slot(request, len(request.token_ids) - 1)]
        assert state is not None
        num_output_tokens = len(request.token_ids) - request.num_prompt_tokens
        return next_token(state, request.seed, num_output_tokens, request.banned_token_ids)


@dataclass
class Clock:
    """Seconds that pass only when told."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Rig:
    """A scheduler with its cache, model and clock, and all news it has given."""

    num_blocks: int = 64
    block_size: int = 4
    max_num_seqs: int = 8
    max_num_batched_tokens: int = 64
    max_model_len: int | None = None
    policy: str = "fcfs"
    watermark: float = 0.0
    enable_prefix_caching: bool = True
    clock: Clock = field(default_factory=Clock)
    updates: list[RequestUpdate] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.kv_cache = KVCacheManager(
            self.num_blocks,
            self.block_size,
            enable_prefix_caching=self.enable_prefix_caching,
            namespace="fake",
            watermark=self.watermark,
        )
        config = SchedulerConfig(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.max_model_len or self.num_blocks * self.block_size,
            policy=self.policy,
        )
        self.scheduler = Scheduler(config, self.kv_cache, self.clock)
        self.model = FakeModel(self.num_blocks, self.block_size)

    def add(
        self,
        request_id: str,
        prompt: int | list[int],
        max_tokens: int = 4,
        params: SamplingParams = GREEDY,
        **options: object,
    ) -> Request:
        """Add a request; a prompt given as a number is that many tokens, different for each id."""
        if isinstance(prompt, int):
            prompt = [(sum(request_id.encode()) + i) % VOCAB for i in range(prompt)]
        request = Request(
            request_id=request_id,
            token_ids=prompt,
            params=params,
            max_tokens=max_tokens,
            **{"seed": 1, **options},
        )
        self.scheduler.add_request(request)
        return request

    def plan(self) -> dict[str, int]:
        """The next step's tokens by request, without running it."""
        output = self.scheduler.schedule()
        return {} if output is None else output.num_scheduled_tokens

    def step(self) -> dict[str, int]:
        """Run one step, check conservation, and return the step's tokens by request."""
        output = self.scheduler.schedule()
        if output is None:
            return {}
        assert output.total_num_scheduled_tokens == sum(output.num_scheduled_tokens.values())
        self.updates += self.scheduler.update_from_output(output, self.model.execute(output))
        assert self.scheduler.check_conservation() == []
        return output.num_scheduled_tokens

    def drain(self, max_steps: int = 10_000) -> int:
        """Step until nothing is left; how many steps it took."""
        steps = 0
        while self.scheduler.has_unfinished:
            assert steps < max_steps, "requests do not come to an end"
            assert self.step(), "requests are left but nothing was scheduled"
            steps += 1
        return steps

    def output(self, request_id: str) -> list[int]:
        """All tokens that were told for a request."""
        return [t for u in self.updates if u.request_id == request_id for t in u.new_token_ids]

    def ends(self, request_id: str) -> list[str]:
        """Every finish reason that was told for a request."""
        return [u.finish_reason for u in self.updates if u.request_id == request_id and u.finish_reason]
