"""The cost model with its constants folded: the seconds of a step, for those who ask thousands of times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from rooftree.roofline.batch import Batch
from rooftree.roofline.costs import AttentionCosts, MatrixCosts, ModelCosts
from rooftree.roofline.efficiency import PEAK, Efficiency, ProductMix
from rooftree.roofline.experts import busiest_share, experts_touched
from rooftree.roofline.time import Limit, arithmetic_rate, link_rate, nearness
from rooftree.specs.device import DeviceSpec


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """What a step should take, and what it moves and computes.

    Attributes:
        seconds: of the whole step.
        bytes, flop: of device memory moved, and computed.
        bandwidth_seconds, arithmetic_seconds: what these take at the device's own rates, nothing lost. Over
            the seconds of a step they are the fraction of each limit that it reaches.
        limit: what binds for most of the time.
    """

    seconds: float
    bytes: float
    flop: float
    bandwidth_seconds: float
    arithmetic_seconds: float
    limit: Limit


@dataclass(frozen=True, slots=True)
class _Matrix:
    """``row_seconds``: of one row at the device's peak; ``other_*``: activations and logits of one row."""

    costs: MatrixCosts
    mix: ProductMix
    is_head: bool
    weight_seconds: float
    other_bytes: float
    other_seconds: float
    row_seconds: float
    peak_row_seconds: float


@dataclass(frozen=True, slots=True)
class _Attention:
    """Of one cached token that is read, and of one query that meets one."""

    costs: AttentionCosts
    read_seconds: float
    pair_seconds: float
    prefill_pair_seconds: float


class _Part(NamedTuple):
    """Of one kind of kernel. ``peak_seconds``: its FLOP at the device's own rate."""

    memory: float
    arithmetic: float
    bytes: float
    flop: float
    peak_seconds: float


@dataclass(frozen=True, slots=True)
class StepClock:
    """``seconds(batch)`` equals ``step_time(step_work(costs, batch), device, efficiency).seconds``."""

    efficiency: Efficiency
    matrices: tuple[_Matrix, ...]
    attention: tuple[_Attention, ...]
    kv_write_bytes: float
    state_bytes: float
    state_flop: float
    kv_bandwidth: float
    state_rate: float
    attention_peak: float
    bandwidth: float
    fixed_seconds: float
    token_link_seconds: float
    launch_seconds: float
    stages: int
    expert_devices: int
    expert_groups: int
    skew: float

    def seconds(self, batch: Batch) -> float:
        """Seconds of a step."""
        part = 1.0 / self._micro_batches(batch)
        total = self._fixed(batch, part)
        for work in self._parts(batch, part):
            total += work[0] if work[0] > work[1] else work[1]
        return max(total, self.launch_seconds)

    def estimate(self, batch: Batch) -> StepEstimate:
        """What a step should take, and what it does, on the device that does most.

        Under a pipeline it is one micro-batch, as in ``step_work``.
        """
        part = 1.0 / self._micro_batches(batch)
        link = batch.tokens * part * self.token_link_seconds
        overhead = self._fixed(batch, part) - link
        memory = arithmetic = moved = flop = peak_seconds = 0.0
        near = nearness(self.efficiency)
        for work in self._parts(batch, part):
            if work[0] >= near * work[1]:
                memory += work[0] if work[0] > work[1] else work[1]
            else:
                arithmetic += work[1]
            moved += work[2]
            flop += work[3]
            peak_seconds += work[4]
        total = memory + arithmetic + overhead + link
        waiting = max(0.0, self.launch_seconds - total)
        limits: tuple[tuple[float, Limit], ...] = (
            (memory, "bandwidth"),
            (arithmetic, "arithmetic"),
            (link, "interconnect"),
            (overhead + waiting, "overhead"),
        )
        return StepEstimate(
            seconds=total + waiting,
            bytes=moved,
            flop=flop,
            bandwidth_seconds=moved / self.bandwidth,
            arithmetic_seconds=peak_seconds,
            limit=max(limits)[1],
        )

    def _micro_batches(self, batch: Batch) -> int:
        return max(1, min(self.stages, int(batch.sequences)))

    def _fixed(self, batch: Batch, part: float) -> float:
        """What no kernel does: overheads, links, and what is done to activations besides."""
        tokens, outputs = batch.tokens * part, batch.outputs * part
        total = self.fixed_seconds + batch.sequences * part * self.efficiency.request_seconds
        besides = self.efficiency.activation_seconds
        if besides:
            for matrix in self.matrices:
                total += (outputs if matrix.is_head else tokens) * matrix.other_bytes * besides
        return total + tokens * self.token_link_seconds

    def _parts(self, batch: Batch, part: float) -> list[_Part]:
        tokens, outputs, sequences = batch.tokens * part, batch.outputs * part, batch.sequences * part
        parts = [self._product(matrix, outputs if matrix.is_head else tokens) for matrix in self.matrices]
        for attention, span in zip(self.attention, batch.spans, strict=True):
            costs = attention.costs
            if span.decode:
                pairs = span.decode * part
                parts.append(
                    self._attention_part(
                        costs.kv_bytes * pairs,
                        costs.pair_flop * pairs,
                        pairs * attention.read_seconds,
                        pairs * attention.pair_seconds,
                    )
                )
            if span.prefill_pairs:
                reads, pairs = span.prefill_reads * part, span.prefill_pairs * part
                parts.append(
                    self._attention_part(
                        costs.kv_bytes * reads,
                        costs.prefill_pair_flop * pairs,
                        reads * attention.read_seconds,
                        pairs * attention.prefill_pair_seconds,
                    )
                )
        written = tokens * self.kv_write_bytes
        parts.append(_Part(written / self.kv_bandwidth, 0.0, written, 0.0, 0.0))
        if self.state_bytes:
            moved, flop = sequences * self.state_bytes, tokens * self.state_flop
            parts.append(self._attention_part(moved, flop, moved / self.kv_bandwidth, flop / self.state_rate))
        return parts

    def _product(self, matrix: _Matrix, rows: float) -> _Part:
        costs, shared = matrix.costs, rows
        weights, load = 1.0, 1.0
        if costs.experts:
            everyones = rows * self.expert_groups
            load = busiest_share(everyones, costs.active, self.expert_devices)
            touched = experts_touched(costs.experts, costs.active, everyones, self.skew)
            weights = min(1.0, load * touched / costs.experts)
            shared = everyones * costs.active / touched if touched else 0.0
        elif matrix.is_head and not rows:
            weights = 0.0
        flop, arithmetic = costs.token_flop * rows * load, 0.0
        if flop:
            arithmetic = rows * load * matrix.row_seconds
            arithmetic *= matrix.mix.equivalent_rows(shared) / shared
        return _Part(
            weights * matrix.weight_seconds + rows * matrix.other_seconds,
            arithmetic,
            weights * costs.weight_bytes + rows * matrix.other_bytes,
            flop,
            rows * load * matrix.peak_row_seconds,
        )

    def _attention_part(self, moved: float, flop: float, memory: float, arithmetic: float) -> _Part:
        return _Part(memory, arithmetic, moved, flop, flop / self.attention_peak)


def step_clock(
    costs: ModelCosts, device: DeviceSpec, efficiency: Efficiency = PEAK, *, skew: float = 0.0
) -> StepClock:
    """Fold the constants.

    Raises:
        ConfigError: as ``step_time``.
    """
    kv_bandwidth = device.bandwidth * efficiency.kv_bandwidth
    attention_peak = arithmetic_rate(device, "bf16")
    attention_rate = attention_peak * efficiency.attention_arithmetic
    prefill_rate = attention_rate * efficiency.prefill_attention
    parallel = costs.parallel
    tensor, stages = parallel.tensor, parallel.pipeline
    fixed = efficiency.step_seconds + efficiency.layer_seconds * costs.layers
    fixed += efficiency.expert_layer_seconds * costs.expert_layers
    fixed += efficiency.all_reduce_seconds * (costs.all_reduces + costs.all_to_alls + stages - 1)
    per_token = 0.0
    if costs.all_reduces:
        moved = 2 * (tensor - 1) / tensor * costs.all_reduces * costs.hidden_bytes
        per_token += moved / (link_rate(device, tensor) * efficiency.link)
    if costs.all_to_alls:
        sent = costs.all_to_alls * costs.exchange_bytes
        per_token += sent / (link_rate(device, parallel.stage_devices) * efficiency.link)
    if stages > 1:
        rate = link_rate(device, parallel.stage_devices * stages) * efficiency.link
        per_token += (stages - 1) * costs.hidden_bytes / rate
    return StepClock(
        efficiency=efficiency,
        matrices=tuple(_matrices(costs, device, efficiency)),
        attention=tuple(
            _Attention(
                part,
                part.kv_bytes / kv_bandwidth,
                part.pair_flop / attention_rate,
                part.prefill_pair_flop / prefill_rate,
            )
            for part in costs.attention
        ),
        kv_write_bytes=costs.kv_write_bytes,
        state_bytes=costs.state_bytes,
        state_flop=costs.state_flop,
        kv_bandwidth=kv_bandwidth,
        state_rate=attention_rate,
        attention_peak=attention_peak,
        bandwidth=device.bandwidth,
        fixed_seconds=fixed,
        token_link_seconds=per_token,
        launch_seconds=efficiency.launch_seconds * costs.layers,
        stages=stages,
        expert_devices=parallel.expert,
        expert_groups=parallel.groups,
        skew=skew,
    )


def _matrices(costs: ModelCosts, device: DeviceSpec, efficiency: Efficiency) -> list[_Matrix]:
    folded = []
    for matrix in costs.matrices:
        factor = efficiency.experts if matrix.experts else 1.0
        bandwidth = device.bandwidth * efficiency.weight_bandwidth * factor
        peak = arithmetic_rate(device, matrix.arithmetic)
        is_head = matrix.name == "head"
        moved = matrix.activation_bytes + (costs.logits_bytes if is_head else 0.0)
        folded.append(
            _Matrix(
                matrix,
                efficiency.product_mix(matrix.formats, matrix.arithmetic),
                is_head,
                matrix.weight_bytes / bandwidth,
                moved,
                moved / bandwidth,
                matrix.token_flop / (peak * factor),
                matrix.token_flop / peak,
            )
        )
    return folded
