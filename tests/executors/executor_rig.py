"""Models in memory, and sequences fed to an executor in any pieces, on any blocks, beside any others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rigs.models import DTypes, Weights, random_weights, tiny_spec
from rooftree import _native
from rooftree.checkpoint.base import Checkpoint, DType, Tensor, TextAssets
from rooftree.checkpoint.formats import quantize
from rooftree.engine.executors.cpu import CPUExecutor
from rooftree.engine.executors.reference import ReferenceExecutor
from rooftree.kernels.ops import Floats
from rooftree.sampling.params import SamplingParams
from rooftree.scheduler.output import ModelRunnerOutput, ScheduledRequest, SchedulerOutput
from rooftree.specs.model import ModelSpec

ISAS = _native.supported_isas()


def rounds_to_bf16(dtype: str, isa: str) -> bool:
    """Whether weights of that dtype meet inputs rounded to bf16 there."""
    return dtype == "BF16" and _native.multiplies_bf16(isa)


GREEDY = SamplingParams(temperature=0.0)

Executor = CPUExecutor | ReferenceExecutor


def memory_checkpoint(spec: ModelSpec, weights: Weights, dtype: DTypes = "F32") -> Checkpoint:
    """A checkpoint of these weights, each rounded to its format; vectors stay floats."""
    tensors = {}
    for name, values in weights.items():
        kind: DType = (
            dtype if isinstance(dtype, str) else dtype(name) if callable(dtype) else dtype.get(name, "F32")
        )
        if values.ndim == 1 and kind not in ("F32", "F16", "BF16"):
            kind = "F32"
        tensors[name] = Tensor(name, values.shape, kind, quantize(kind, values), "memory")
    return Checkpoint("tiny", "memory", "safetensors", spec, tensors, TextAssets())


SUPER_BLOCK_SHAPE = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 64,
}


def tiny_checkpoint(family: Any = "llama", dtype: DTypes = "F32", seed: int = 0, **over: Any) -> Checkpoint:
    """A random model of a family, 256 wide for formats that need it; fields may be overridden."""
    wide = isinstance(dtype, str) and dtype.endswith("_K")
    spec = tiny_spec(family, **(SUPER_BLOCK_SHAPE if wide else {}) | over)
    return memory_checkpoint(spec, random_weights(spec, seed), dtype)


def make_executor(
    checkpoint: Checkpoint,
    kind: type[CPUExecutor] | type[ReferenceExecutor] = CPUExecutor,
    *,
    num_blocks: int = 64,
    **options: Any,
) -> Any:
    """An executor ready for steps: one thread, 16 sequences, 512 tokens, unless ``options`` differ."""
    chosen = {"threads": 1, "max_num_seqs": 16, "max_num_batched_tokens": 512, "max_model_len": 512} | options
    executor = kind(checkpoint, **chosen)
    executor.allocate_kv_cache(num_blocks)
    return executor


@dataclass
class Feed:
    """A request as its owner sees it: what it has, and how much of it the executor has computed."""

    request_id: str
    tokens: list[int]
    block_ids: list[int]
    params: SamplingParams = GREEDY
    num_prompt_tokens: int = 0
    seed: int = 0
    computed: int = 0

    def __post_init__(self) -> None:
        self.num_prompt_tokens = self.num_prompt_tokens or len(self.tokens)

    def scheduled(self, num_tokens: int) -> ScheduledRequest:
        """Its part of a step."""
        return ScheduledRequest(
            self.request_id,
            self.tokens,
            self.num_prompt_tokens,
            self.computed,
            num_tokens,
            self.block_ids,
            self.computed + num_tokens == len(self.tokens),
            self.params,
            self.seed,
        )


@dataclass
class Driver:
    """Runs steps, and keeps of each the logits by request."""

    executor: Executor
    logits: dict[str, Floats] = field(default_factory=dict)
    num_feeds: int = 0

    def feed(self, tokens: Sequence[int], block_ids: Sequence[int], **options: Any) -> Feed:
        """A new request with lists of its own."""
        self.num_feeds += 1
        return Feed(f"request {self.num_feeds}", list(tokens), list(block_ids), **options)

    def step(self, parts: Iterable[tuple[Feed, int]]) -> ModelRunnerOutput:
        """One step of so many tokens of each request; ``logits`` afterwards holds those that sampled."""
        requests = [feed.scheduled(count) for feed, count in parts]
        counts = {request.request_id: request.num_tokens for request in requests}
        result = self.executor.execute(SchedulerOutput(requests, counts, sum(counts.values())))
        for feed, count in parts:
            feed.computed += count
        sampled = [request.request_id for request in requests if request.samples]
        rows = self.executor.last_logits(len(sampled)).copy()
        self.logits = dict(zip(sampled, rows, strict=True))
        return result

    def read(self, tokens: Sequence[int], chunks: Sequence[int], block_ids: Sequence[int]) -> Floats:
        """Logits after the last of these tokens, fed as a new request in chunks and what they leave."""
        feed = self.feed(tokens, block_ids)
        for chunk in chunks:
            if feed.computed + chunk < len(tokens):
                self.step([(feed, chunk)])
        self.step([(feed, len(tokens) - feed.computed)])
        return self.logits[feed.request_id]

    def read_at(self, tokens: Sequence[int], ends: Iterable[int], block_ids: Sequence[int]) -> Floats:
        """Logits after each of these numbers of tokens, (ends, vocab), of one request growing by chunks."""
        feed = self.feed([], block_ids, num_prompt_tokens=1)
        rows = []
        for end in ends:
            feed.tokens.extend(tokens[feed.computed : end])
            self.step([(feed, end - feed.computed)])
            rows.append(self.logits[feed.request_id])
        return np.stack(rows)

    def read_each(self, tokens: Sequence[int], chunk: int, block_ids: Sequence[int]) -> Floats:
        """The same after every ``chunk`` tokens and what is left."""
        ends = [*range(chunk, len(tokens), chunk), len(tokens)]
        return self.read_at(tokens, ends, block_ids)


def spread_error(got: Floats, expected: Floats) -> float:
    """Largest difference, as a share of the spread of the logits expected (row by row, the worst)."""
    spread = expected.max(axis=-1, keepdims=True) - expected.min(axis=-1, keepdims=True)
    return float((np.abs(got - expected) / spread).max())


def random_tokens(count: int, vocab_size: int = 512, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, vocab_size, count).tolist()
