"""What would move a plan: one thing changed at a time, judged by the steady state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rooftree.planner.deployment import (
    PUBLISHED,
    Deployment,
    possible_expert_sizes,
    possible_tensor_sizes,
)
from rooftree.planner.estimate import Estimate
from rooftree.planner.load import steady_state
from rooftree.specs.device import DeviceSpec
from rooftree.specs.weight_format import own_cache_dtype


@dataclass(frozen=True, slots=True)
class Move:
    """One change, and the factors by which it changes TPOT, tokens per second and device, and capacity.

    Throughput is that of full replicas, at the largest batch that fits before and after.
    """

    change: str
    tpot: float
    rate_per_device: float
    sequences: float
    note: str = ""


def moves(found: Estimate, next_device: DeviceSpec | None = None) -> list[Move]:
    """Every change that is possible; where the model no longer fits, it is left out."""
    before = _reached(found, found.deployment)
    if before is None:
        return []
    result = _doubled(found)
    for change, deployment, note in _variants(found, next_device):
        after = _reached(found, deployment)
        if after is not None:
            tpot, rate, sequences = (new / old for new, old in zip(after, before, strict=True))
            result.append(Move(change, tpot, rate, sequences, note))
    return result


def _variants(found: Estimate, next_device: DeviceSpec | None) -> Iterator[tuple[str, Deployment, str]]:
    base = found.deployment
    bits = base.model.architecture.scheme.linear.bits if base.scheme is None else base.scheme.linear.bits
    for name, wanted in (("fp8", 8), ("awq", 4), ("nvfp4", 4)):
        if wanted < bits:
            note = (
                ""
                if name == "awq" or name.removeprefix("nv") in base.device.peak_flops
                else (f"{base.device.name} has no {name.removeprefix('nv')} arithmetic: only bytes are saved")
            )
            yield f"weights in {name}", replace(base, weight_dtype=name), note
    if base.kv_dtype in ("bf16", "fp16"):
        smaller = own_cache_dtype("fp8") if base.constants.is_own_engine else "fp8"
        yield "KV cache in fp8", replace(base, kv_dtype=smaller), ""
    yield from _layout_variants(base)
    if next_device is not None:
        yield f"on {next_device.name}", replace(base, device=next_device), ""
    quicker = base.constants.without_overhead()
    yield "no overhead per layer and step", replace(base, constants=quicker), "the best any engine could"


def _layout_variants(base: Deployment) -> Iterator[tuple[str, Deployment, str]]:
    """Half and twice the devices of a stage; for experts, spread instead of cut and the other way round."""
    parallel, devices = base.parallel, base.parallel.stage_devices
    tensors = possible_tensor_sizes(base.model, base.device, 16)
    experts = possible_expert_sizes(base.model, base.device, 1, 16)
    for other in (devices // 2, devices, devices * 2):
        if other in tensors and (other, 1) != (parallel.tensor, parallel.expert):
            cut = replace(parallel, tensor=other, expert=1)
            yield f"tensor parallel {other}", replace(base, parallel=cut), ""
        if other > 1 and other in experts and (1, other) != (parallel.tensor, parallel.expert):
            spread = replace(parallel, tensor=1, expert=other)
            note = "each device attends for its own sequences"
            yield f"experts spread over {other}", replace(base, parallel=spread), note


def _doubled(found: Estimate) -> list[Move]:
    """Twice as many sequences in a step, where they fit."""
    batch = found.steady.batch if found.steady else 1
    if 2 * batch > found.sequences:
        return []
    now = steady_state(found.deployment, found.workload, batch)
    then = steady_state(found.deployment, found.workload, 2 * batch)
    return [Move("twice the batch", then.tpot / now.tpot, then.output_rate / now.output_rate, 1.0)]


def _reached(found: Estimate, deployment: Deployment) -> tuple[float, float, float] | None:
    """TPOT at the plan's batch, tokens per second and device when full, sequences at once per device."""
    if not deployment.is_linked or not deployment.budget.fits:
        return None
    fit = deployment.sequences(found.workload.tokens_per_sequence)
    if fit < 1:
        return None
    parallel, groups = deployment.parallel, found.deployment.parallel.groups
    batch = (found.steady.batch if found.steady else 1) * groups / parallel.groups
    steady = steady_state(deployment, found.workload, max(1, round(batch)))
    full = steady_state(deployment, found.workload, min(fit, deployment.options.max_sequences))
    per_device = parallel.groups / parallel.devices_per_replica
    return steady.tpot, full.output_rate * per_device, fit * per_device


def published_dtype(deployment: Deployment) -> str:
    """The weight dtype to show."""
    if deployment.weight_dtype == PUBLISHED:
        return deployment.model.architecture.scheme.name
    return deployment.weight_dtype
