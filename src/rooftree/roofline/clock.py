"""The cost model with its constants folded: the seconds of a step, for those who ask thousands of times."""

from __future__ import annotations

from dataclasses import dataclass

from rooftree.roofline.batch import Batch
from rooftree.roofline.costs import ModelCosts
from rooftree.roofline.efficiency import PEAK, Efficiency
from rooftree.roofline.experts import busiest_share, experts_touched
from rooftree.roofline.time import arithmetic_rate, link_rate
from rooftree.specs.device import DeviceSpec


@dataclass(frozen=True, slots=True)
class _Matrix:
    is_head: bool
    weight_seconds: float
    activation_seconds: float
    flop_seconds: float
    experts: int
    active: int


@dataclass(frozen=True, slots=True)
class _Attention:
    read_seconds: float
    pair_seconds: float
    prefill_pair_seconds: float


@dataclass(frozen=True, slots=True)
class StepClock:
    """``seconds(batch)`` equals ``step_time(step_work(costs, batch), device, efficiency).seconds``."""

    matrices: tuple[_Matrix, ...]
    attention: tuple[_Attention, ...]
    token_write_seconds: float
    state_seconds: float
    state_flop_seconds: float
    fixed_seconds: float
    sequence_seconds: float
    token_link_seconds: float
    launch_seconds: float
    stages: int
    expert_devices: int
    skew: float

    def seconds(self, batch: Batch) -> float:
        """Seconds of a step."""
        micro_batches = max(1, min(self.stages, int(batch.sequences)))
        part = 1.0 / micro_batches
        tokens, outputs, sequences = batch.tokens * part, batch.outputs * part, batch.sequences * part
        total = self.fixed_seconds + sequences * self.sequence_seconds
        total += tokens * (self.token_link_seconds + self.token_write_seconds)
        for matrix in self.matrices:
            rows = outputs if matrix.is_head else tokens
            weights, load = matrix.weight_seconds, 1.0
            if matrix.experts:
                load = busiest_share(tokens, matrix.active, self.expert_devices)
                touched = experts_touched(matrix.experts, matrix.active, tokens, self.skew)
                weights = min(weights, weights * load * touched / matrix.experts)
            elif matrix.is_head and not rows:
                weights = 0.0
            total += max(weights + rows * matrix.activation_seconds, rows * matrix.flop_seconds * load)
        for attention, span in zip(self.attention, batch.spans, strict=True):
            decode, reads, pairs = span.decode * part, span.prefill_reads * part, span.prefill_pairs * part
            total += decode * max(attention.read_seconds, attention.pair_seconds)
            total += max(reads * attention.read_seconds, pairs * attention.prefill_pair_seconds)
        total += max(sequences * self.state_seconds, tokens * self.state_flop_seconds)
        return max(total, self.launch_seconds)


def step_clock(
    costs: ModelCosts, device: DeviceSpec, efficiency: Efficiency = PEAK, *, skew: float = 0.0
) -> StepClock:
    """Fold the constants.

    Raises:
        ConfigError: as ``step_time``.
    """
    kv_bandwidth = device.bandwidth * efficiency.kv_bandwidth
    attention_rate = arithmetic_rate(device, "bf16") * efficiency.attention_arithmetic
    tensor, stages = costs.parallel.tensor, costs.parallel.pipeline
    fixed = efficiency.step_seconds + efficiency.layer_seconds * costs.layers
    fixed += efficiency.expert_layer_seconds * costs.expert_layers
    fixed += efficiency.all_reduce_seconds * (costs.all_reduces + stages - 1)
    per_token = 0.0
    if costs.all_reduces:
        moved = 2 * (tensor - 1) / tensor * costs.all_reduces * costs.hidden_bytes
        per_token += moved / (link_rate(device, tensor) * efficiency.link)
    if stages > 1:
        rate = link_rate(device, tensor * stages) * efficiency.link
        per_token += (stages - 1) * costs.hidden_bytes / rate
    return StepClock(
        matrices=tuple(_matrices(costs, device, efficiency)),
        attention=tuple(
            _Attention(
                part.kv_bytes / kv_bandwidth,
                part.pair_flop / attention_rate,
                part.prefill_pair_flop / attention_rate,
            )
            for part in costs.attention
        ),
        token_write_seconds=costs.kv_write_bytes / kv_bandwidth,
        state_seconds=costs.state_bytes / kv_bandwidth,
        state_flop_seconds=costs.state_flop / attention_rate,
        fixed_seconds=fixed,
        sequence_seconds=efficiency.request_seconds,
        token_link_seconds=per_token,
        launch_seconds=efficiency.launch_seconds * costs.layers,
        stages=stages,
        expert_devices=costs.parallel.expert,
        skew=skew,
    )


def _matrices(costs: ModelCosts, device: DeviceSpec, efficiency: Efficiency) -> list[_Matrix]:
    folded = []
    for matrix in costs.matrices:
        factor = efficiency.experts if matrix.experts else 1.0
        bandwidth = device.bandwidth * efficiency.weight_bandwidth * factor
        rate = arithmetic_rate(device, matrix.arithmetic) * efficiency.arithmetic * factor
        is_head = matrix.name == "head"
        moved = matrix.activation_bytes + (costs.logits_bytes if is_head else 0.0)
        folded.append(
            _Matrix(
                is_head,
                matrix.weight_bytes / bandwidth,
                moved / bandwidth,
                matrix.token_flop / rate,
                matrix.experts,
                matrix.active,
            )
        )
    return folded
