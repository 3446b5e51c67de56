"""Rooftree's engine as it serves: the step loop with its scheduler, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from rooftree.checkpoint.layout import EMBEDDING
from rooftree.checkpoint.open import open_checkpoint
from rooftree.checkpoint.quantization import Quantization
from rooftree.engine.builder import build_engine_core
from rooftree.engine.config import EngineConfig
from rooftree.engine.messages import EngineCoreOutputs, EngineCoreRequest, StepTotals
from rooftree.sampling.params import SamplingParams

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


class RooftreeSpeed:
    """Times ``EngineCore.step``: scheduling, the step, sampling and bookkeeping; prefix cache on.

    Attributes:
        aside_seconds: the part of the last timing spent outside the native program.
        step_weight_bytes: packed weights that a step reads: all, but an embedding that is not the head too.
    """

    def __init__(
        self,
        path: Path,
        *,
        threads: int,
        sequences: int,
        length: int,
        isa: str | None = None,
        quantization: Quantization | None = None,
    ) -> None:
        config = EngineConfig(
            model=str(path),
            threads=threads,
            isa=isa,
            quantization=quantization,
            max_num_seqs=sequences,
            max_model_len=length,
            # The pool is what these sequences need and no more.
            kv_watermark=0.0,
        )
        checkpoint = open_checkpoint(config.model)
        self._core, self.ready = build_engine_core(config, checkpoint)
        unread = 0 if checkpoint.spec.tie_word_embeddings else checkpoint.tensors[EMBEDDING].num_bytes
        self.step_weight_bytes = self._core.executor.weight_bytes - unread
        self._before = self._totals()
        self._num_requests = 0
        self._held: list[list[int]] = []

    def prefill_seconds(self, prompt: Sequence[int]) -> float:
        """From a prompt, which must be new to the prefix cache, to its first token."""
        self._before = self._totals()
        begin = perf_counter()
        self._add([prompt], max_tokens=1)
        while self._core.has_unfinished_requests:
            self._step()
        return perf_counter() - begin

    def decode_seconds(self, prompts: Sequence[Sequence[int]], steps: int) -> float:
        """``steps`` steps of one token for each of the prompts, which are computed before and not timed.

        Prompts are computed one by one first, so that all of them then begin in a step or two; should some
        decode while the last ones begin, their contexts are a few tokens longer than the prompts.
        """
        self._hold(prompts)
        ids = self._add(prompts, max_tokens=2 * len(prompts) + steps)
        waiting = set(ids)
        while waiting:
            waiting -= {output.request_id for output in self._step().outputs}
        self._before = self._totals()
        begin = perf_counter()
        for _ in range(steps):
            if len(self._step().outputs) != len(prompts):
                raise RuntimeError(
                    "a request was not in the step; the KV pool is too small for this benchmark"
                )
        seconds = perf_counter() - begin
        self._core.abort_requests(ids)
        self._core.step()
        return seconds

    def serve_seconds(self, prompts: Sequence[Sequence[int]], at_once: int, tokens: int) -> float:
        """All prompts with answers of ``tokens`` tokens, the next one as soon as one of ``at_once`` ends."""
        waiting = list(reversed(prompts))
        self._before = self._totals()
        begin = perf_counter()
        for _ in range(min(at_once, len(waiting))):
            self._add([waiting.pop()], max_tokens=tokens)
        while self._core.has_unfinished_requests:
            for output in self._step().outputs:
                if output.finish_reason is not None and waiting:
                    self._add([waiting.pop()], max_tokens=tokens)
        return perf_counter() - begin

    def _hold(self, prompts: Sequence[Sequence[int]]) -> None:
        """Bring the prefix cache to know these prompts."""
        wanted = [list(prompt) for prompt in prompts]
        if wanted != self._held:
            for prompt in wanted:
                self.prefill_seconds(prompt)
            self._held = wanted

    def _add(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> list[str]:
        ids = []
        for prompt in prompts:
            self._num_requests += 1
            ids.append(f"r{self._num_requests}")
            self._core.add_request(EngineCoreRequest(ids[-1], list(prompt), GREEDY, max_tokens, seed=0))
        return ids

    def _step(self) -> EngineCoreOutputs:
        outputs = self._core.step()
        for output in outputs.outputs:
            if output.error is not None:
                raise RuntimeError(output.error)
        return outputs

    def _totals(self) -> StepTotals:
        """Of all steps so far, those noted and not yet gone through included."""
        _ = self._core.last_step
        return self._core.stats().steps

    @property
    def aside_seconds(self) -> float:
        """See above."""
        timed = self._totals().since(self._before)
        return timed.seconds - timed.native_seconds

    def close(self) -> None:
        """Give its memory and threads back."""
        self._core.close()
