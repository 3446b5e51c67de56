"""The seconds of one step on a device, and the limit that binds."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from rooftree.errors import ConfigError
from rooftree.roofline.efficiency import PEAK, Efficiency
from rooftree.roofline.work import PartWork, StepWork
from rooftree.specs.device import DeviceSpec

Limit = Literal["bandwidth", "arithmetic", "interconnect", "overhead"]

# Where a chip lacks an arithmetic, weights in it are unpacked to the next that it has. Packed weights meet
# 16-bit activations where there is such arithmetic, and int8 ones on processors that have none.
_INSTEAD = {
    "packed": ("bf16", "fp16", "int8", "fp32"),
    "fp4": ("fp8", "bf16", "fp16", "fp32"),
    "fp8": ("bf16", "fp16", "fp32"),
    "int8": ("bf16", "fp16", "fp32"),
    "bf16": ("fp16", "fp32"),
    "fp16": ("bf16", "fp32"),
    "fp32": ("bf16", "fp16"),
}


_CACHE_PARTS = ("decode attention", "prefill attention", "cache write", "recurrence")


@dataclass(frozen=True, slots=True)
class PartTime:
    """Seconds of one part, and whether bytes or FLOP set them."""

    name: str
    seconds: float
    limit: Limit


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a step, part by part.

    Attributes:
        seconds: of the whole step.
        parts: every part, interconnect and overheads among them; their seconds add up to ``seconds``.
        binding: the limit under which most of the time goes by.
        bandwidth_fraction, arithmetic_fraction: bytes and FLOP of the step over what the device's published
            rates could have moved and computed in that time.
        pipeline_idle: share of the time for which a pipeline's stages wait for micro-batches.
    """

    seconds: float
    parts: tuple[PartTime, ...]
    binding: Limit
    bandwidth_fraction: float
    arithmetic_fraction: float
    pipeline_idle: float = 0.0

    def by_limit(self) -> dict[Limit, float]:
        """Seconds under each limit."""
        sums: dict[Limit, float] = dict.fromkeys(("bandwidth", "arithmetic", "interconnect", "overhead"), 0.0)
        for part in self.parts:
            sums[part.limit] += part.seconds
        return sums


def step_time(work: StepWork, device: DeviceSpec, efficiency: Efficiency = PEAK) -> StepTime:
    """Seconds of a step.

    Kernels of one kind follow those of another, and each kind takes the longer of its bytes over bandwidth
    and its FLOP over the arithmetic rate; all-reduces and fixed costs are added. So the sum is never below
    the roofline max(FLOP / peak, bytes / bandwidth) of the whole step. Where the host takes longer to launch
    the layers, the device waits for it.

    Raises:
        ConfigError: several devices, and no link between them is known.
    """
    parts = [_part_time(part, device, efficiency) for part in work.parts if part.bytes or part.flop]
    if work.stage_devices > 1 or work.stages > 1:
        parts.append(PartTime("interconnect", link_seconds(work, device, efficiency), "interconnect"))
    parts.append(PartTime("overhead", overhead_seconds(work, efficiency), "overhead"))
    device_seconds = sum(part.seconds for part in parts)
    idle = efficiency.launch_seconds * work.layers - device_seconds
    if idle > 0:
        parts.append(PartTime("launching", idle, "overhead"))
    parts = _merged(parts)
    seconds = sum(part.seconds for part in parts)
    busy = max(seconds, 1e-12) * work.stages / work.micro_batches
    return StepTime(
        seconds=seconds,
        parts=tuple(parts),
        binding=_binding(parts),
        bandwidth_fraction=work.bytes / device.bandwidth / busy,
        arithmetic_fraction=sum(part.flop / arithmetic_rate(device, part.arithmetic) for part in work.parts)
        / busy,
        pipeline_idle=1.0 - work.micro_batches / work.stages,
    )


def arithmetic_rate(device: DeviceSpec, dtype: str) -> float:
    """Dense peak FLOP/s for weights of that arithmetic: in the dtype itself, or the next that the chip has.

    Raises:
        ConfigError: the chip has none of them.
    """
    return device.peak_flops[arithmetic_dtype(device, dtype)]


def arithmetic_dtype(device: DeviceSpec, dtype: str) -> str:
    """The dtype in which a device multiplies weights of that arithmetic.

    Raises:
        ConfigError: the chip has none of them.
    """
    for name in (dtype, *_INSTEAD.get(dtype, ())):
        if name in device.peak_flops:
            return name
    raise ConfigError(f"{device.name} has no arithmetic for {dtype} weights, nor a wider one")


def link_rate(device: DeviceSpec, devices: int) -> float:
    """Bytes/s in one direction, per device, between ``devices`` devices: the direct link, else PCIe.

    Raises:
        ConfigError: neither is known.
    """
    link = device.link
    if link is not None and devices <= (link.max_devices or devices):
        return link.bytes_per_second
    if device.pcie_bytes_per_second is not None:
        return device.pcie_bytes_per_second
    raise ConfigError(
        f"no link between {devices} devices of {device.name} is known: plan one device per replica, or state "
        "link or pcie_bytes_per_second in your device file"
    )


def link_seconds(work: StepWork, device: DeviceSpec, efficiency: Efficiency) -> float:
    """All-reduces of the tensor group (a ring moves 2(n-1)/n of the message), exchanges with the devices of
    the experts, and hops of the pipeline."""
    n, seconds = work.devices, 0.0
    if work.all_reduces:
        moved = 2 * (n - 1) / n * work.message_bytes / (link_rate(device, n) * efficiency.link)
        seconds += work.all_reduces * (efficiency.all_reduce_seconds + moved)
    if work.all_to_alls:
        sent = work.exchange_bytes / (link_rate(device, work.stage_devices) * efficiency.link)
        seconds += work.all_to_alls * (efficiency.all_reduce_seconds + sent)
    if work.stages > 1:
        hop = work.message_bytes / (link_rate(device, work.stage_devices * work.stages) * efficiency.link)
        seconds += (work.stages - 1) * (efficiency.all_reduce_seconds + hop)
    return seconds


def overhead_seconds(work: StepWork, efficiency: Efficiency) -> float:
    """Fixed costs of the step, its layers and its requests, and what is done to activations besides."""
    activations = sum(part.activations + part.logits for part in work.parts)
    return (
        efficiency.step_seconds
        + efficiency.layer_seconds * work.layers
        + efficiency.expert_layer_seconds * work.expert_layers
        + efficiency.request_seconds * work.sequences
        + efficiency.activation_seconds * activations
    )


def part_seconds(part: PartWork, device: DeviceSpec, efficiency: Efficiency) -> tuple[float, float]:
    """Seconds that a part's bytes take, and its FLOP."""
    rate = arithmetic_rate(device, part.arithmetic)
    if part.name in _CACHE_PARTS:
        arithmetic = efficiency.attention_arithmetic
        if part.name == "prefill attention":
            arithmetic *= efficiency.prefill_attention
        return part.bytes / (device.bandwidth * efficiency.kv_bandwidth), part.flop / (rate * arithmetic)
    factor = efficiency.experts if part.name == "experts" else 1.0
    memory = part.bytes / (device.bandwidth * efficiency.weight_bandwidth * factor)
    if not part.flop:
        return memory, 0.0
    per_row = part.flop / (rate * factor * part.rows)
    return memory, per_row * efficiency.product_mix(part.formats, part.arithmetic).equivalent_rows(part.rows)


def _part_time(part: PartWork, device: DeviceSpec, efficiency: Efficiency) -> PartTime:
    memory, arithmetic = part_seconds(part, device, efficiency)
    limit: Limit = "bandwidth" if memory >= nearness(efficiency) * arithmetic else "arithmetic"
    return PartTime(part.name, max(memory, arithmetic), limit)


def nearness(efficiency: Efficiency) -> float:
    """How much of the seconds for its FLOP a part's bytes must take for bandwidth to be its limit.

    Where products were measured, they had to read their weights as well: with few rows that is what their
    seconds are, and the two are equal but for noise.
    """
    return 0.9 if efficiency.products else 1.0


def _merged(parts: list[PartTime]) -> list[PartTime]:
    """Parts of the same name and limit as one."""
    sums: dict[tuple[str, Limit], float] = defaultdict(float)
    for part in parts:
        sums[part.name, part.limit] += part.seconds
    return [PartTime(name, seconds, limit) for (name, limit), seconds in sums.items()]


def _binding(parts: list[PartTime]) -> Limit:
    sums: dict[Limit, float] = defaultdict(float)
    for part in parts:
        sums[part.limit] += part.seconds
    return max(sums, key=lambda limit: sums[limit])
