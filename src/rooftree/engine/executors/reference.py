"""Runs steps in numpy: the same families and samplers in plain sight, for tests and for doubt."""

from __future__ import annotations

import numpy as np

from rooftree.checkpoint.base import Checkpoint
from rooftree.engine.config import KVCacheDType
from rooftree.kernels.ops import Floats
from rooftree.kernels.reference import ReferenceOps, ReferenceRequest
from rooftree.kernels.reference_sampler import sample
from rooftree.models.decoder import decoder, load_weights
from rooftree.models.rope import rope_tables
from rooftree.scheduler.output import ModelRunnerOutput, ScheduledRequest, SchedulerOutput, TokenLogprobs


class ReferenceExecutor:
    """See ``Executor``. ``threads`` and ``isa`` are taken for symmetry; numpy does as it likes."""

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
        cos, sin = rope_tables(spec.rope, spec.head_dim, max_model_len)
        self._spec = spec
        self._kv_dtype = kv_cache_dtype
        self._ops = ReferenceOps(
            layers=spec.num_layers,
            heads=spec.num_heads,
            kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            cos=cos,
            sin=sin,
            block_size=block_size,
        )
        self._weights = load_weights(self._ops, spec, checkpoint.tensors)
        self._logits: Floats = np.zeros((0, spec.vocab_size), np.float32)
        self.weight_bytes = self._ops.weight_bytes
        self.activation_bytes = 4 * max_num_batched_tokens * (spec.hidden_size + 2 * spec.intermediate_size)
        self.activation_bytes += 4 * max_num_seqs * spec.vocab_size
        self.kv_bytes_per_block = block_size * spec.kv_bytes_per_token(2 if kv_cache_dtype == "fp16" else 4)
        self.last_native_seconds = 0.0
        self.isa: str | None = None
        self.threads = threads or 1
        self.progress = 0  # a step tells nothing of its inside

    def allocate_kv_cache(self, num_blocks: int) -> None:
        self._ops.allocate_kv_cache(num_blocks, self._kv_dtype)

    def read_rate(self, num_bytes: int, tries: int) -> float:
        raise NotImplementedError("numpy's products are bound by no limit that could be measured")

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        requests: list[ReferenceRequest] = []
        tokens: list[int] = []
        for request in output.requests:
            begin = len(tokens)
            tokens += request.token_ids[request.start : request.start + request.num_tokens]
            requests.append(
                ReferenceRequest(begin, len(tokens), request.start, request.block_ids, request.samples)
            )
        self._ops.begin_step(np.asarray(tokens, np.int32), requests)
        self._logits = decoder(self._ops, self._spec, self._weights)
        result = ModelRunnerOutput({}, {}, {})
        for logits, request in zip(self._logits, (r for r in output.requests if r.samples), strict=True):
            _choose(request, logits, result)
        return result

    def last_logits(self, num_rows: int) -> Floats:
        """Logits of the last step's first ``num_rows`` sampled rows, (num_rows, vocab)."""
        return self._logits[:num_rows]

    def close(self) -> None:
        """Nothing is held but memory."""


def _choose(request: ScheduledRequest, logits: Floats, result: ModelRunnerOutput) -> None:
    chosen = sample(
        logits,
        request.params,
        prompt=request.token_ids[: request.num_prompt_tokens],
        output=request.token_ids[request.num_prompt_tokens :],
        seed=request.seed,
        banned=request.banned_token_ids,
    )
    if chosen is None:
        result.errors[request.request_id] = "the model's logits are not finite numbers"
        return
    result.sampled_token_ids[request.request_id] = chosen.token
    if request.params.logprobs is not None:
        result.logprobs[request.request_id] = TokenLogprobs(
            chosen.logprob, chosen.rank, list(chosen.top_ids), list(chosen.top_logprobs)
        )
