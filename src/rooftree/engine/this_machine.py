"""The machine that the engine runs on, for its cost model: as probed, else as a glance at it tells."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import date
from pathlib import Path

from rooftree import _native
from rooftree.checkpoint.base import Checkpoint
from rooftree.checkpoint.stored_architecture import stored_architecture
from rooftree.engine.config import KVCacheDType
from rooftree.engine.executors.cores import spread_processors
from rooftree.engine.executors.processor import memory_bytes, processor_name
from rooftree.errors import ConfigError
from rooftree.roofline.costs import ModelCosts, model_costs
from rooftree.roofline.efficiency import Efficiency
from rooftree.roofline.machine import Machine, Setting, default_machine_file, read_machine
from rooftree.specs.catalogue import THIS_MACHINE
from rooftree.specs.device import DeviceSpec
from rooftree.specs.weight_format import own_cache_dtype

logger = logging.getLogger(__name__)

TYPICAL = Efficiency(
    weight_bandwidth=0.85,
    kv_bandwidth=0.6,
    arithmetic=0.45,
    attention_arithmetic=0.3,
    layer_seconds=10e-6,
    step_seconds=100e-6,
    request_seconds=20e-6,
)
"""What the engine reached of the limits on the processors that it was made on."""

_GLANCE_BYTES = 1 << 27
_GLANCE_ROUNDS = 200_000
_GLANCE_TRIES = 3


ReadRate = Callable[[int, int], float]
"""``Executor.read_rate``."""


def this_machine(threads: int, isa: str, read_rate: ReadRate, file: Path | None = None) -> Machine:
    """The machine as ``rooftree probe`` measured it, else by a measurement of a tenth of a second.

    Args:
        threads, isa, read_rate: of the engine. Another setting than the probed one is not what was probed.
        file: what ``rooftree probe`` wrote; None: where it writes.

    A file that is not there, is of another setting or cannot be read is passed over; ``origin`` says so,
    and a warning what is wrong with one that cannot be read.
    """
    setting = Setting(processor_name(), threads, isa)
    file = file or default_machine_file()
    if not file.exists():
        origin = "limits measured at start, efficiencies assumed: rooftree probe measures them"
        return _glanced(setting, read_rate, origin)
    try:
        probed = read_machine(file)
    except ConfigError as error:
        logger.warning("the probed machine is passed over: %s", error)
        origin = "the probe's file is broken; limits measured at start, efficiencies assumed"
        return _glanced(setting, read_rate, origin)
    if probed.setting != setting:
        origin = "probed with another processor, thread count or ISA; limits measured at start"
        return _glanced(setting, read_rate, origin)
    return probed.machine


def engine_costs(checkpoint: Checkpoint, kv_cache_dtype: KVCacheDType) -> ModelCosts:
    """The constants of a model as this engine runs it."""
    return model_costs(stored_architecture(checkpoint), kv_dtype=own_cache_dtype(kv_cache_dtype))


def _glanced(setting: Setting, read_rate: ReadRate, origin: str) -> Machine:
    """The machine by loops that do nothing else (native/limits.h).

    The weights are read where they lie, which takes no memory and is what the model's term for them means:
    what steps read over and over. Weights that a cache holds come from there in steps too, and a bandwidth of
    memory, which they exceed, would be no bound; of K and V that no cache holds it then says too much.
    """
    isa, threads = setting.isa, setting.threads
    measured = f"measured on {date.today().isoformat()} with {threads} threads, {isa}"
    processors = spread_processors(threads)
    rates = _native.int8_rates(isa, processors, _GLANCE_ROUNDS, _GLANCE_TRIES)
    device = DeviceSpec(
        name=setting.cpu,
        aliases=(THIS_MACHINE,),
        peak_flops={
            "fp32": _native.fp32_rate(isa, processors, _GLANCE_ROUNDS, _GLANCE_TRIES),
            "int8": max(rate for _, rate in rates),
        },
        bandwidth=read_rate(_GLANCE_BYTES, _GLANCE_TRIES),
        memory_bytes=memory_bytes(),
        sources={
            "peak_flops": f"products in registers, {measured}",
            "bandwidth": f"reading the model's weights, {measured}",
            "memory_bytes": "the system",
        },
        certainty="high: measured",
    )
    return Machine(device, TYPICAL, origin)
