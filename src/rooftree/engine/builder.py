"""From options to an engine that has computed its first token, with the seconds and bytes that it took."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic, perf_counter, time
from typing import TYPE_CHECKING

import msgspec

from rooftree.checkpoint.base import Checkpoint
from rooftree.engine.config import EngineConfig, check_config
from rooftree.engine.core import EngineCore
from rooftree.engine.executors.base import Executor
from rooftree.engine.host_memory import available_bytes
from rooftree.engine.kv_cache_dtype import kv_cache_dtype
from rooftree.engine.memory import Footprint, MemoryPlan, check_weights, plan_memory, wanted_model_len
from rooftree.engine.messages import EngineReady
from rooftree.engine.step_log import StepLog
from rooftree.engine.telemetry import Telemetry
from rooftree.errors import ConfigError, ModelError
from rooftree.kvcache.manager import KVCacheManager
from rooftree.roofline.clock import step_clock
from rooftree.sampling.params import SamplingParams
from rooftree.scheduler.config import SchedulerConfig
from rooftree.scheduler.output import ScheduledRequest, SchedulerOutput
from rooftree.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from rooftree.engine.executors.cpu import CPUExecutor
    from rooftree.engine.executors.reference import ReferenceExecutor

Progress = Callable[[str], None]
MakeExecutor = Callable[[EngineConfig, Checkpoint, int], Executor]


def make_executor(config: EngineConfig, checkpoint: Checkpoint, max_model_len: int) -> Executor:
    """The executor that ``config`` names, its weights packed."""
    # Imported here: each brings what the other does not need.
    executor: type[CPUExecutor | ReferenceExecutor]
    if config.executor == "reference":
        from rooftree.engine.executors.reference import ReferenceExecutor

        executor = ReferenceExecutor
    else:
        from rooftree.engine.executors.cpu import CPUExecutor

        executor = CPUExecutor
    return executor(
        checkpoint,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=max_model_len,
        block_size=config.block_size,
        kv_cache_dtype=kv_cache_dtype(config, checkpoint),
        threads=config.threads,
        isa=config.isa,
    )


def build_engine_core(
    config: EngineConfig,
    checkpoint: Checkpoint | None = None,
    *,
    progress: Progress = lambda phase: None,
    make_executor: MakeExecutor = make_executor,
) -> tuple[EngineCore, EngineReady]:
    """Open the model, pack its weights, size and take the KV cache, compute a first token.

    Args:
        checkpoint: the model if it is open already.
        progress: told the name of each phase as it begins: ``open``, ``weights``, ``kv_cache``, ``machine``,
            ``warm_up``.

    Raises:
        ConfigError: options that contradict each other or the machine.
        ModelError: a model that cannot be loaded.
    """
    check_config(config)
    phases = _Phases(progress)
    with ExitStack() as undo:
        step_log = None if config.step_log is None else StepLog(Path(config.step_log))
        if step_log is not None:
            undo.callback(step_log.close)
        with phases.time("open"):
            checkpoint = _open(config, checkpoint)
        config = msgspec.structs.replace(config, kv_cache_dtype=kv_cache_dtype(config, checkpoint))
        check_weights(checkpoint.path, _weight_bytes(config, checkpoint), available_bytes())
        model_max_len = checkpoint.spec.max_position_embeddings
        with phases.time("weights"):
            executor = _packed(make_executor, config, checkpoint, wanted_model_len(config, model_max_len))
        undo.callback(executor.close)
        with phases.time("kv_cache"):
            footprint = Footprint(
                executor.weight_bytes, executor.activation_bytes, executor.kv_bytes_per_block
            )
            plan = plan_memory(config, model_max_len, footprint, available_bytes())
            scheduler = _scheduler(config, plan, checkpoint.name)
            executor.allocate_kv_cache(plan.num_blocks)
        with phases.time("machine"):
            telemetry, limits = _telemetry(config, checkpoint, executor, step_log)
        with phases.time("warm_up"):
            _warm_up(executor, checkpoint)
        undo.pop_all()
    ready = EngineReady(
        plan.num_blocks,
        config.block_size,
        plan.max_model_len,
        phases.seconds,
        [*plan.rows, *limits],
        [*checkpoint.notices, *plan.notices],
    )
    return EngineCore(config, executor, scheduler, telemetry=telemetry), ready


def _open(config: EngineConfig, checkpoint: Checkpoint | None) -> Checkpoint:
    if checkpoint is None:
        from rooftree.checkpoint.open import open_checkpoint

        checkpoint = open_checkpoint(config.model)
    if config.quantization is None:
        return checkpoint
    from rooftree.checkpoint.quantize_on_load import quantized

    return quantized(checkpoint, config.quantization)


def _weight_bytes(config: EngineConfig, checkpoint: Checkpoint) -> int:
    """Bytes of the weights in memory; what the reference executor makes of them is not foreseen."""
    if config.executor == "reference":
        return checkpoint.weight_bytes
    from rooftree.kernels.cpu import packed_bytes

    return sum(packed_bytes(tensor) for tensor in checkpoint.tensors.values())


def _packed(
    make_executor: MakeExecutor, config: EngineConfig, checkpoint: Checkpoint, max_model_len: int
) -> Executor:
    try:
        return make_executor(config, checkpoint, max_model_len)
    except MemoryError:
        raise ConfigError(
            f"the system refused the memory for the weights or for steps of --max-num-batched-tokens "
            f"{config.max_num_batched_tokens} and --max-num-seqs {config.max_num_seqs}; lower them"
        ) from None


def _scheduler(config: EngineConfig, plan: MemoryPlan, model: str) -> Scheduler:
    limits = SchedulerConfig(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=plan.max_model_len,
        policy=config.scheduling_policy,
    )
    kv_cache = KVCacheManager(
        plan.num_blocks,
        config.block_size,
        enable_prefix_caching=config.enable_prefix_caching,
        namespace=f"{model}/{config.quantization or 'as stored'}/{config.kv_cache_dtype}",
        watermark=config.kv_watermark,
    )
    return Scheduler(limits, kv_cache, monotonic)


def _telemetry(
    config: EngineConfig, checkpoint: Checkpoint, executor: Executor, log: StepLog | None
) -> tuple[Telemetry, list[tuple[str, str, str]]]:
    """Telemetry of the model on this machine, and the machine's limits as rows of the memory table."""
    epoch = time() - perf_counter()
    if executor.isa is None:
        return Telemetry(epoch=epoch, log=log), []
    from rooftree.engine.this_machine import engine_costs, this_machine

    machine = this_machine(executor.threads, executor.isa, executor.read_rate)
    costs = engine_costs(checkpoint, kv_cache_dtype(config, checkpoint))
    clock = step_clock(costs, machine.device, machine.efficiency)
    rate = f"{machine.device.bandwidth / 1e9:.1f} GB/s"
    return Telemetry(clock, costs.windows, epoch, log), [("read bandwidth", rate, machine.origin)]


def _warm_up(executor: Executor, checkpoint: Checkpoint) -> None:
    """Compute one token past the scheduler: readiness then means that the model has answered.

    Its K and V go to the first slot of block 0, which whoever gets the block writes before reading.
    """
    token = checkpoint.text.bos_token_id or 0
    request = ScheduledRequest("warm-up", [token], 1, 0, 1, [0], True, SamplingParams(temperature=0.0), 0)
    result = executor.execute(SchedulerOutput([request], {"warm-up": 1}, 1))
    if "warm-up" in result.errors:
        raise ModelError(
            f"{checkpoint.path}: the model's first token could not be computed: {result.errors['warm-up']}; "
            f"the file is damaged or was converted wrongly"
        )


class _Phases:
    """Seconds spent in each phase, in order."""

    def __init__(self, progress: Progress) -> None:
        self.seconds: dict[str, float] = {}
        self._progress = progress

    @contextmanager
    def time(self, phase: str) -> Iterator[None]:
        self._progress(phase)
        start = perf_counter()
        yield
        self.seconds[phase] = perf_counter() - start
