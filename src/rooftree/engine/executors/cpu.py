"""Runs steps on the native CPU kernels."""

from __future__ import annotations

import time

import numpy as np

from rooftree import _native
from rooftree.checkpoint.base import Checkpoint
from rooftree.engine.config import KVCacheDType
from rooftree.engine.executors.cores import physical_cores, spread_processors
from rooftree.engine.executors.request_tables import RequestTables
from rooftree.engine.executors.sampling_rows import RESULT_DTYPE, SamplingRows
from rooftree.errors import ConfigError, EngineDeadError, ModelError
from rooftree.kernels.cpu import KV_FORMAT_CODES, CpuRecorder
from rooftree.models.decoder import decoder, load_weights
from rooftree.models.rope import rope_tables
from rooftree.scheduler.output import (
    ModelRunnerOutput,
    ScheduledRequest,
    SchedulerOutput,
    TokenLogprobs,
)
from rooftree.specs.model import ModelSpec

_MAX_QUERIES_PER_KV_HEAD = 48
_MAX_HEAD_DIM = 512

# native/sampler.h: what each thread's Sampler keeps for each token of the vocabulary.
_SAMPLER_BYTES_PER_TOKEN = 16

# native/sampler.h, SampleStatus.
_NO_CHOICE = {
    1: "the model's logits are not finite numbers",
    2: "every token of the vocabulary is banned by logit_bias, stop tokens and penalties",
}


class CPUExecutor:
    """Packs the weights, records the step program, and replays it (see ``Executor``).

    Raises:
        ConfigError: unknown instruction set, or a bad block size.
        ModelError: a shape that the kernels do not take.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        block_size: int = 16,
        kv_cache_dtype: KVCacheDType = "fp16",
        threads: int | None = None,
        isa: str | None = None,
    ) -> None:
        spec = checkpoint.spec
        self._isa = choose_isa(isa)
        self.isa: str | None = self._isa
        if block_size % 16 or block_size <= 0:
            raise ConfigError(f"--block-size {block_size}: must be a positive multiple of 16")
        if spec.head_dim % 8 or spec.head_dim > _MAX_HEAD_DIM:
            raise ModelError(
                f"{checkpoint.path}: head_dim {spec.head_dim} is not a multiple of 8 up to {_MAX_HEAD_DIM}"
            )
        if spec.num_heads > _MAX_QUERIES_PER_KV_HEAD * spec.num_kv_heads:
            raise ModelError(
                f"{checkpoint.path}: more than {_MAX_QUERIES_PER_KV_HEAD} query heads per KV head"
            )
        self.threads = threads or physical_cores()
        self._spec, self._block_size = spec, block_size
        self._kv_format = KV_FORMAT_CODES[kv_cache_dtype]
        recorder = CpuRecorder(
            _native.ThreadPool(self.threads),
            self._isa,
            heads=spec.num_heads,
            kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
        )
        logits = decoder(recorder, spec, load_weights(recorder, spec, checkpoint.tensors))
        recorder.sample(logits)
        self._weights: _native.WeightMemory | None = recorder.memory
        cos, sin = rope_tables(spec.rope, spec.head_dim, max_model_len)
        self._kv_cache: _native.KvCache | None = None
        self._program: _native.Program | None
        self._program, arena_bytes = recorder.build(max_num_batched_tokens, max_num_seqs, cos, sin)
        self.weight_bytes = recorder.weight_bytes
        self.kv_bytes_per_block = _native.KvCache.bytes_per_block(
            spec.num_layers, spec.num_kv_heads, spec.head_dim, block_size, self._kv_format
        )
        self.last_native_seconds = 0.0
        self._tables = RequestTables(max_num_seqs, max_model_len, -(-max_model_len // block_size))
        self._requests = np.zeros((max_num_seqs, 5), np.int32)
        self._sampling = SamplingRows(max_num_seqs)
        self._results = np.zeros(max_num_seqs, RESULT_DTYPE)
        self.activation_bytes = arena_bytes + tables_bytes(
            spec, max_num_seqs, max_model_len, block_size, self.threads
        )
        self._result_bytes = self._results.view(np.uint8).reshape(-1)

    def allocate_kv_cache(self, num_blocks: int) -> None:
        spec = self._spec
        try:
            cache = _native.KvCache(
                spec.num_layers,
                spec.num_kv_heads,
                spec.head_dim,
                self._block_size,
                self._kv_format,
                num_blocks,
            )
        except MemoryError:
            gib = num_blocks * self.kv_bytes_per_block / 2**30
            raise ConfigError(
                f"the system refused {gib:.2f} GiB for {num_blocks} KV blocks; lower --kv-cache-memory"
            ) from None
        self._kv_cache = cache
        self._open_program().set_kv_cache(cache)

    def fill_kv_cache(self) -> None:
        """Write to all KV memory, so that reading it takes as long as in use; for measurements."""
        if self._kv_cache is not None:
            self._kv_cache.fill()

    def read_rate(self, num_bytes: int, tries: int) -> float:
        if self._weights is None:
            raise EngineDeadError("the executor is closed")
        return self._weights.read_rate(self._isa, spread_processors(self.threads), num_bytes, tries)

    @property
    def progress(self) -> int:
        """The op that a step is at."""
        program = self._program
        return 0 if program is None else program.current_op

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        sampled: list[ScheduledRequest] = []
        rows = self._requests[: len(output.requests)]
        for i, request in enumerate(output.requests):
            row = self._tables.row_for(request, output.num_scheduled_tokens)
            rows[i] = (row, request.start, request.num_tokens, request.samples, 0)
            if request.samples:
                sampled.append(request)
        program, sampling = self._open_program(), self._sampling
        sampling.pack(sampled)
        begin = time.perf_counter()
        program.run(
            rows,
            self._tables.tokens,
            self._tables.blocks,
            sampling.rows,
            sampling.bias_ids,
            sampling.bias_values,
            sampling.banned_ids,
            self._result_bytes,
        )
        self.last_native_seconds = time.perf_counter() - begin
        return self._collect(sampled)

    def _collect(self, sampled: list[ScheduledRequest]) -> ModelRunnerOutput:
        results = self._results[: len(sampled)]
        tokens = {r.request_id: token for r, token in zip(sampled, results["token"].tolist(), strict=True)}
        logprobs: dict[str, TokenLogprobs] = {}
        errors: dict[str, str] = {}
        for i, request in enumerate(sampled):
            if tokens[request.request_id] < 0:
                del tokens[request.request_id]
                errors[request.request_id] = _NO_CHOICE[int(results["status"][i])]
            elif request.params.logprobs is not None:
                logprobs[request.request_id] = _token_logprobs(results[i])
        return ModelRunnerOutput(tokens, logprobs, errors)

    def last_logits(self, num_rows: int) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        """Logits of the last step's first sampled rows, (num_rows, vocab_size), as sampling left them."""
        out = np.empty(num_rows * self._spec.vocab_size, np.float32)
        self._open_program().copy_logits(out)
        return out.reshape(num_rows, self._spec.vocab_size)

    def close(self) -> None:
        self._kv_cache = self._weights = None
        self._program = None  # and with it KV blocks and threads

    def _open_program(self) -> _native.Program:
        if self._program is None:
            raise EngineDeadError("the executor is closed")
        return self._program


def tables_bytes(
    spec: ModelSpec, max_num_seqs: int, max_model_len: int, block_size: int, threads: int
) -> int:
    """Bytes kept beside weights, KV and arena: rotary angles, tables of requests, samplers."""
    angles = 2 * max_model_len * (spec.head_dim // 2) * 4
    requests = RequestTables.num_bytes(max_num_seqs, max_model_len, -(-max_model_len // block_size))
    return angles + requests + threads * _SAMPLER_BYTES_PER_TOKEN * spec.vocab_size


def choose_isa(isa: str | None) -> str:
    """The kernels to use: as asked, else the best.

    Raises:
        ConfigError: this machine or build does not run them.
    """
    supported = _native.supported_isas()
    if isa is not None and isa not in supported:
        raise ConfigError(f"--isa {isa} (or ROOFTREE_ISA): this machine and build run {', '.join(supported)}")
    return isa or supported[0]


def _token_logprobs(result: np.void) -> TokenLogprobs:
    n = int(result["num_top"])
    return TokenLogprobs(
        float(result["logprob"]),
        int(result["rank"]),
        result["top_ids"][:n].tolist(),
        result["top_logprobs"][:n].tolist(),
    )
