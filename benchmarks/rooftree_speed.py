"""Rooftree's engine as it serves: the step loop with its scheduler, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from rooftree.engine.builder import build_engine_core
from rooftree.engine.config import EngineConfig
from rooftree.engine.messages import EngineCoreOutputs, EngineCoreRequest
from rooftree.sampling.params import SamplingParams

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


class RooftreeSpeed:
    """Times ``EngineCore.step``: scheduling, the step, sampling and bookkeeping; prefix cache on.

    ``python_seconds`` is the part of the last timing spent outside the native program.
    """

    def __init__(
        self, path: Path, *, threads: int, sequences: int, length: int, isa: str | None = None
    ) -> None:
        config = EngineConfig(
            model=str(path),
            threads=threads,
            isa=isa,
            max_num_seqs=sequences,
            max_model_len=length,
        )
        self._core, self.ready = build_engine_core(config)
        self.python_seconds = 0.0
        self._num_requests = 0

    def prefill_seconds(self, prompt: Sequence[int]) -> float:
        """From a prompt, which must be new to the prefix cache, to its first token."""
        self.python_seconds = 0.0
        begin = perf_counter()
        self._add([prompt], max_tokens=1)
        while self._core.has_unfinished_requests:
            self._step()
        return perf_counter() - begin

    def decode_seconds(self, prompts: Sequence[Sequence[int]], steps: int) -> float:
        """``steps`` steps of one token for each of the prompts, which are computed before and not timed.

        The scheduler lets the first prompts of a large batch decode while the last ones are computed, so when
        the time begins the first contexts are a few tokens longer than the prompts.
        """
        ids = self._add(prompts, max_tokens=2 * len(prompts) + steps)
        waiting = set(ids)
        while waiting:
            waiting -= {output.request_id for output in self._step().outputs}
        self.python_seconds = 0.0
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
        record = self._core.last_step
        if record is not None:
            self.python_seconds += record.seconds - record.native_seconds
        return outputs

    def close(self) -> None:
        """Give its memory and threads back."""
        self._core.close()
