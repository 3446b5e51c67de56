"""An executor whose answers can be foretold, and an engine around it."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from rigs.models import tiny_spec
from rigs.tokenizer import tiny_tokenizer
from rooftree.checkpoint.base import TextAssets
from rooftree.engine.config import EngineConfig
from rooftree.engine.core import EngineCore
from rooftree.engine.frontend import Frontend
from rooftree.engine.llm import LLM
from rooftree.engine.messages import EngineCoreOutput, EngineCoreRequest, EngineReady
from rooftree.engine.stats import IterationStats
from rooftree.kvcache.manager import KVCacheManager
from rooftree.sampling.params import SamplingParams
from rooftree.scheduler.config import SchedulerConfig
from rooftree.scheduler.output import ModelRunnerOutput, ScheduledRequest, SchedulerOutput, TokenLogprobs
from rooftree.scheduler.scheduler import Scheduler
from rooftree.text.tokenizer import Tokenizer

VOCAB_SIZE = 300
EOS = 257

Script = Callable[[list[int], int], int]


def hashed(token_ids: list[int], seed: int) -> int:
    """A next token that depends on every token before it."""
    return zlib.crc32(repr((token_ids, seed)).encode()) % VOCAB_SIZE


def foretell(prompt: list[int], num_tokens: int, seed: int = 0, script: Script = hashed) -> list[int]:
    """What the executor will answer to a prompt alone."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(script(tokens, seed))
    return tokens[len(prompt) :]


class FakeExecutor:
    """Chooses ``script(tokens so far, seed)``, with seed 0 where the request is greedy.

    It remembers which token was written to which slot, and fails the test if a step relies on K and V that
    are not those of its own tokens.
    """

    def __init__(self, script: Script = hashed, block_size: int = 16) -> None:
        self.weight_bytes = 1 << 20
        self.activation_bytes = 1 << 10
        self.kv_bytes_per_block = 1 << 12
        self.last_native_seconds = 0.0
        self.isa: str | None = None
        self.threads = 1
        self.progress = 0
        self.num_blocks = 0
        self.num_steps = 0
        self.closed = False
        self.poisoned: set[str] = set()
        self._script = script
        self._block_size = block_size
        self._slots: dict[int, tuple[int, int]] = {}

    def allocate_kv_cache(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks

    def read_rate(self, num_bytes: int, tries: int) -> float:
        return 10e9

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        self.num_steps += 1
        result = ModelRunnerOutput({})
        for request in output.requests:
            self._write(request)
        for request in output.requests:
            if request.request_id in self.poisoned:
                result.errors[request.request_id] = "logits are not finite"
            elif request.samples:
                result.sampled_token_ids[request.request_id] = self._choose(request)
                if request.params.logprobs is not None:
                    result.logprobs[request.request_id] = self._logprobs(request)
        return result

    def close(self) -> None:
        self.closed = True

    def _slot(self, request: ScheduledRequest, position: int) -> int:
        block = request.block_ids[position // self._block_size]
        assert 0 <= block < self.num_blocks
        return block * self._block_size + position % self._block_size

    def _write(self, request: ScheduledRequest) -> None:
        for position in range(request.start):
            assert self._slots[self._slot(request, position)] == (position, request.token_ids[position])
        for position in range(request.start, request.start + request.num_tokens):
            self._slots[self._slot(request, position)] = (position, request.token_ids[position])

    def _choose(self, request: ScheduledRequest) -> int:
        assert request.start + request.num_tokens == len(request.token_ids)
        seed = 0 if request.params.temperature == 0.0 else request.seed
        token = self._script(request.token_ids, seed)
        while token in request.banned_token_ids:
            token = (token + 1) % VOCAB_SIZE
        return token

    def _logprobs(self, request: ScheduledRequest) -> TokenLogprobs:
        top = request.params.logprobs or 0
        chosen = self._choose(request)
        ids = [(chosen + i) % VOCAB_SIZE for i in range(top)]
        values = [-0.25 * (1 + i) - len(request.token_ids) / 1024 for i in range(max(top, 1))]
        return TokenLogprobs(values[0], 1, ids, values[:top])


def make_core(
    config: EngineConfig | None = None,
    *,
    num_blocks: int = 64,
    max_model_len: int = 512,
    script: Script = hashed,
    **parts: Any,
) -> EngineCore:
    """An engine over a ``FakeExecutor``; ``parts``: further arguments of ``EngineCore``."""
    config = config or EngineConfig()
    executor = FakeExecutor(script, config.block_size)
    executor.allocate_kv_cache(num_blocks)
    kv_cache = KVCacheManager(
        num_blocks,
        config.block_size,
        enable_prefix_caching=config.enable_prefix_caching,
        watermark=config.kv_watermark,
    )
    limits = SchedulerConfig(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=max_model_len,
        policy=config.scheduling_policy,
    )
    clock = iter(range(10**9))
    return EngineCore(config, executor, Scheduler(limits, kv_cache, lambda: float(next(clock))), **parts)


def core_request(request_id: str, prompt: list[int], max_tokens: int, **params: object) -> EngineCoreRequest:
    """A greedy generation unless ``params`` say otherwise."""
    seed = params.pop("core_seed", 0)
    eos = params.pop("eos", ())
    options = {"temperature": 0.0, "ignore_eos": False} | params
    return EngineCoreRequest(
        request_id, prompt, SamplingParams(**options), max_tokens, seed, eos_token_ids=tuple(eos)
    )


def run_core(core: EngineCore, max_steps: int = 10_000) -> dict[str, list[EngineCoreOutput]]:
    """Step until nothing is left; the outputs by request. Checks conservation after every step."""
    news: dict[str, list[EngineCoreOutput]] = {}
    for _ in range(max_steps):
        if not core.has_unfinished_requests:
            return news
        for output in core.step().outputs:
            news.setdefault(output.request_id, []).append(output)
        assert core.scheduler.check_conservation() == []
    raise AssertionError("the engine does not come to an end")


def joined(outputs: list[EngineCoreOutput]) -> list[int]:
    """All tokens of one request's outputs."""
    return [token for output in outputs for token in output.new_token_ids]


def make_frontend(extra: Sequence[str | bytes] = ()) -> Frontend:
    """Ids 0 to 255 are the bytes, 256 to 259 the specials, 260 and up ``extra``, the rest filler."""
    tiny = tiny_tokenizer(VOCAB_SIZE, extra)
    assets = TextAssets(
        tokenizer_json=tiny.hf_json(), tokenizer_config=tiny.hf_config(), eos_token_ids=(tiny.eos_token_id,)
    )
    return Frontend(
        name="fake",
        spec=tiny_spec(vocab_size=VOCAB_SIZE),
        tokenizer=Tokenizer.from_assets(assets, VOCAB_SIZE),
        chat_template=None,
        eos_token_ids=(tiny.eos_token_id,),
        generation_defaults={},
    )


def make_llm(
    config: EngineConfig | None = None,
    *,
    num_blocks: int = 64,
    max_model_len: int = 512,
    script: Script = hashed,
    extra: Sequence[str | bytes] = (),
    stat_logger: StatRecorder | None = None,
) -> LLM:
    """An ``LLM`` over a ``FakeExecutor``."""
    core = make_core(config, num_blocks=num_blocks, max_model_len=max_model_len, script=script)
    ready = EngineReady(num_blocks, core.config.block_size, max_model_len, {}, [])
    return LLM.from_parts(core, ready, make_frontend(extra), stat_logger)


def saying(text: str | Sequence[int], prompt_length: int = 1) -> Script:
    """A script that answers a prompt of that length with these tokens (a text: its bytes), then with eos."""
    answer = list(text.encode()) if isinstance(text, str) else list(text)

    def script(token_ids: list[int], seed: int) -> int:
        index = len(token_ids) - prompt_length
        return answer[index] if index < len(answer) else EOS

    return script


class StatRecorder:
    """Adds up everything it is told."""

    def __init__(self) -> None:
        self.records: list[IterationStats] = []

    def record(self, stats: IterationStats) -> None:
        self.records.append(stats)

    def total(self, name: str) -> int:
        return sum(getattr(stats, name) for stats in self.records)

    def all(self, name: str) -> list[Any]:
        return [item for stats in self.records for item in getattr(stats, name)]

    def finished_by_reason(self) -> dict[str, int]:
        return dict(Counter(request.finish_reason for request in self.all("finished")))
