"""The machine that the engine runs on, for its cost model: as probed, else as a glance at it tells."""

from __future__ import annotations

import logging
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

# KV dtype of the engine -> how the cost model names what it stores.
CACHE_FORMATS: dict[KVCacheDType, str] = {
    "fp16": "fp16",
    "fp32": "fp32",
    "int8": "int8-per-head",
    "fp8": "fp8-per-head",
}

_GLANCE_BYTES = 1 << 27
_GLANCE_ROUNDS = 200_000
_GLANCE_TRIES = 3


def this_machine(threads: int, isa: str, file: Path | None = None) -> Machine:
    """The machine as ``rooftree probe`` measured it, else by a measurement of a tenth of a second.

    Args:
        threads, isa: of the engine. Another setting than the probed one is not what was probed.
        file: what ``rooftree probe`` wrote; None: where it writes.

    A file that is not there, is of another setting or cannot be read is passed over; ``origin`` says so,
    and a warning what is wrong with one that cannot be read.
    """
    setting = Setting(processor_name(), threads, isa)
    file = file or default_machine_file()
    if not file.exists():
        return _glanced(
            setting, "limits measured at start, efficiencies assumed: rooftree probe measures them"
        )
    try:
        probed = read_machine(file)
    except ConfigError as error:
        logger.warning("the probed machine is passed over: %s", error)
        return _glanced(setting, "the probe's file is broken; limits measured at start, efficiencies assumed")
    if probed.setting != setting:
        return _glanced(
            setting, "probed with another processor, thread count or ISA; limits measured at start"
        )
    return probed.machine


def measure_device(setting: Setting, *, read_bytes: int, rounds: int, tries: int) -> DeviceSpec:
    """The limits of this machine as a device, by loops that do nothing else (native/limits.h)."""
    isa, threads = setting.isa, setting.threads
    measured = f"measured on {date.today().isoformat()} with {threads} threads, {isa}"
    processors = spread_processors(threads)
    rates = _native.int8_rates(isa, processors, rounds, tries)
    return DeviceSpec(
        name=setting.cpu,
        aliases=(THIS_MACHINE,),
        peak_flops={
            "fp32": _native.fp32_rate(isa, processors, rounds, tries),
            "int8": max(rate for _, rate in rates),
        },
        bandwidth=_native.read_rate(isa, processors, read_bytes, tries),
        memory_bytes=memory_bytes(),
        sources={
            "peak_flops": f"products in registers, {measured}",
            "bandwidth": f"reading {read_bytes >> 20} MiB, {measured}",
            "memory_bytes": "the system",
        },
        certainty="high: measured",
    )


def engine_costs(checkpoint: Checkpoint, kv_cache_dtype: KVCacheDType) -> ModelCosts:
    """The constants of a model as this engine runs it."""
    return model_costs(stored_architecture(checkpoint), kv_dtype=CACHE_FORMATS[kv_cache_dtype])


def _glanced(setting: Setting, origin: str) -> Machine:
    device = measure_device(setting, read_bytes=_GLANCE_BYTES, rounds=_GLANCE_ROUNDS, tries=_GLANCE_TRIES)
    return Machine(device, TYPICAL, origin)
