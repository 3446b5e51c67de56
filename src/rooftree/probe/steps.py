"""Steps of the real engine at chosen batches and contexts, timed; what would come before is skipped."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from rooftree.checkpoint.base import Checkpoint
from rooftree.engine.builder import build_engine_core, make_executor
from rooftree.engine.config import EngineConfig
from rooftree.engine.executors.base import Executor
from rooftree.engine.executors.cpu import CPUExecutor
from rooftree.engine.kv_cache_dtype import kv_cache_dtype
from rooftree.engine.messages import EngineCoreRequest
from rooftree.engine.this_machine import engine_costs
from rooftree.errors import RooftreeError
from rooftree.roofline.batch import Batch, RequestTokens, batch_of
from rooftree.sampling.params import SamplingParams
from rooftree.scheduler.output import ModelRunnerOutput, SchedulerOutput

_GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
_TOKEN = 1


@dataclass(frozen=True, slots=True)
class StepShape:
    """One kind of step.

    ``decodes`` requests compute one token each after ``context`` tokens, or, with ``chunk``, one prompt its
    last tokens after ``context`` of them, a multiple of the engine's tokens per step.
    """

    decodes: int
    context: int
    chunk: int = 0


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step as it was computed.

    ``seconds``: scheduling and bookkeeping included; ``native_seconds``: what of them the kernels took.
    """

    batch: Batch
    seconds: float
    native_seconds: float


class _SkippingExecutor:
    """Lets the engine believe that steps were computed, until they are to be."""

    def __init__(self, inner: Executor) -> None:
        self.inner = inner
        self.isa, self.threads = inner.isa, inner.threads
        self.skips = False
        self.last: SchedulerOutput | None = None
        self.last_native_seconds = 0.0
        self.weight_bytes = inner.weight_bytes
        self.activation_bytes = inner.activation_bytes
        self.kv_bytes_per_block = inner.kv_bytes_per_block

    @property
    def progress(self) -> int:
        return self.inner.progress

    def allocate_kv_cache(self, num_blocks: int) -> None:
        self.inner.allocate_kv_cache(num_blocks)

    def read_rate(self, num_bytes: int, tries: int) -> float:
        return self.inner.read_rate(num_bytes, tries)

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        self.last = output
        if self.skips:
            return ModelRunnerOutput({r.request_id: _TOKEN for r in output.requests if r.samples})
        result = self.inner.execute(output)
        self.last_native_seconds = self.inner.last_native_seconds
        return result

    def close(self) -> None:
        self.inner.close()


class StepRig:
    """An engine for steps of chosen shapes. ``costs``: the model's constants.

    Raises:
        RooftreeError: as ``build_engine_core``.
    """

    def __init__(self, checkpoint: Checkpoint, config: EngineConfig) -> None:
        executors: list[_SkippingExecutor] = []

        def make(config: EngineConfig, checkpoint: Checkpoint, max_model_len: int) -> Executor:
            executors.append(_SkippingExecutor(make_executor(config, checkpoint, max_model_len)))
            return executors[0]

        self._core, self.ready = build_engine_core(config, checkpoint, make_executor=make)
        self._executor = executors[0]
        if isinstance(self._executor.inner, CPUExecutor):
            self._executor.inner.fill_kv_cache()
        self.costs = engine_costs(checkpoint, kv_cache_dtype(config, checkpoint))
        self._ids = count()

    def time(self, shape: StepShape, repeats: int) -> list[TimedStep]:
        """Compute such a step ``repeats`` times; contexts grow by a token each time.

        Raises:
            RooftreeError: the KV cache is too small for it.
        """
        if shape.chunk:
            return [self._time_chunk(shape) for _ in range(repeats)]
        # The first to decode wait for the last ones' prompts.
        waits = shape.decodes * (shape.context // self._core.config.max_num_batched_tokens + 2)
        ids = self._add(shape.decodes, shape.context, waits + repeats)
        self._skip_until(shape.decodes)
        steps = [self._step() for _ in range(repeats)]
        self._core.abort_requests(ids)
        return steps

    def close(self) -> None:
        """Give memory and threads back."""
        self._core.close()

    def _time_chunk(self, shape: StepShape) -> TimedStep:
        ids = self._add(1, shape.context + shape.chunk, 1)
        self._executor.skips = True
        for _ in range(-(-shape.context // self._core.config.max_num_batched_tokens)):
            self._core.step()
        step = self._step()
        self._core.abort_requests(ids)
        return step

    def _add(self, number: int, tokens: int, answer: int) -> list[str]:
        ids = [f"step-{next(self._ids)}" for _ in range(number)]
        for request_id in ids:
            self._core.add_request(EngineCoreRequest(request_id, [_TOKEN] * tokens, _GREEDY, answer, 0))
        return ids

    def _skip_until(self, decodes: int) -> None:
        """Until all of the requests decode."""
        self._executor.skips = True
        while self._core.has_unfinished_requests:
            news = self._core.step()
            failed = next((output.error for output in news.outputs if output.error is not None), None)
            if failed is not None:
                raise RooftreeError(failed)
            last = self._executor.last
            if last is not None and len(last.requests) == decodes and all(r.samples for r in last.requests):
                return
        raise RooftreeError(f"{decodes} requests never ran at once: the KV cache is too small")

    def _step(self) -> TimedStep:
        self._executor.skips = False
        self._core.step()
        planned, record = self._executor.last, self._core.last_step
        if planned is None or record is None:
            raise RooftreeError("a step had nothing to compute")
        requests = [RequestTokens(r.num_tokens, r.start, 1, int(r.samples)) for r in planned.requests]
        return TimedStep(batch_of(requests, self.costs.windows), record.seconds, record.native_seconds)
