"""The work of one step: FLOP by kind, bytes of device memory by kind, messages between devices."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Literal

from rooftree.roofline.batch import Batch, Span
from rooftree.roofline.costs import AttentionCosts, MatrixCosts, ModelCosts
from rooftree.roofline.experts import busiest_share, experts_touched

PartName = Literal[
    "linear", "experts", "head", "decode attention", "prefill attention", "cache write", "recurrence"
]
ByteKind = Literal["weights", "kv_read", "kv_write", "state", "activations", "logits"]


@dataclass(frozen=True, slots=True)
class PartWork:
    """Kernels of a step that share a limit: those of one kind in all layers, one after the other.

    ``rows``, ``formats``: of matrix products, the rows that share a pass over the weights, and the weights'
    formats with their shares of the FLOP.
    """

    name: PartName
    arithmetic: str
    flop: float
    weights: float = 0.0
    kv_read: float = 0.0
    kv_write: float = 0.0
    state: float = 0.0
    activations: float = 0.0
    logits: float = 0.0
    rows: float = 0.0
    formats: tuple[tuple[str, float], ...] = ()

    @property
    def bytes(self) -> float:
        """All bytes of device memory moved."""
        return self.weights + self.kv_read + self.kv_write + self.state + self.activations + self.logits


@dataclass(frozen=True, slots=True)
class StepWork:
    """A step on the device that does most, as one micro-batch passes all layers.

    Attributes:
        parts: what is computed, in order of size.
        tokens, sequences: of the micro-batch; ``micro_batches`` of them make the step.
        all_reduces, message_bytes: how many all-reduces, and the bytes that each adds up.
        all_to_alls, exchange_bytes: how many exchanges with the devices of the experts, and the bytes that
            this device sends in each.
        layers, expert_layers: how many, for their fixed costs.
        devices: of the tensor group; ``stages`` of the pipeline; ``stage_devices`` that hold the same layers.
    """

    parts: tuple[PartWork, ...]
    tokens: float
    sequences: float
    all_reduces: int
    message_bytes: float
    layers: int
    expert_layers: int
    devices: int = 1
    stages: int = 1
    micro_batches: int = 1
    stage_devices: int = 1
    all_to_alls: int = 0
    exchange_bytes: float = 0.0

    @property
    def flop(self) -> float:
        """FLOP of all parts."""
        return sum(part.flop for part in self.parts)

    @property
    def bytes(self) -> float:
        """Bytes of device memory moved by all parts."""
        return sum(part.bytes for part in self.parts)

    @property
    def intensity(self) -> float:
        """FLOP per byte of device memory."""
        return self.flop / self.bytes

    def flop_by_kind(self) -> dict[str, float]:
        """FLOP by part."""
        sums: dict[str, float] = defaultdict(float)
        for part in self.parts:
            sums[part.name] += part.flop
        return dict(sums)

    def bytes_by_kind(self) -> dict[ByteKind, float]:
        """Bytes of device memory by what they hold."""
        kinds: tuple[ByteKind, ...] = ("weights", "kv_read", "kv_write", "state", "activations", "logits")
        return {kind: sum(getattr(part, kind) for part in self.parts) for kind in kinds}


def step_work(costs: ModelCosts, batch: Batch, *, skew: float = 0.0) -> StepWork:
    """The work of a step.

    ``skew``: how unevenly tokens choose experts (see ``experts_touched``). Under a pipeline of p stages the
    step is p micro-batches (fewer where there are fewer sequences), and this is the work of one of them.
    Under data-parallel attention ``batch`` is one group's, and all groups are taken to have as much.
    """
    micro_batches = max(1, min(costs.parallel.pipeline, int(batch.sequences)))
    part = 1.0 / micro_batches
    tokens, outputs, sequences = batch.tokens * part, batch.outputs * part, batch.sequences * part
    parts = [_matrix_work(costs, matrix, tokens, outputs, skew) for matrix in costs.matrices]
    for attention, span in zip(costs.attention, batch.spans, strict=True):
        parts.extend(_attention_work(attention, span, part))
    if costs.attention:
        parts.append(PartWork("cache write", "bf16", 0.0, kv_write=costs.kv_write_bytes * tokens))
    if costs.state_bytes:
        parts.append(
            PartWork("recurrence", "bf16", costs.state_flop * tokens, state=costs.state_bytes * sequences)
        )
    return StepWork(
        parts=tuple(parts),
        tokens=tokens,
        sequences=sequences,
        all_reduces=costs.all_reduces,
        message_bytes=costs.hidden_bytes * tokens,
        layers=costs.layers,
        expert_layers=costs.expert_layers,
        devices=costs.parallel.tensor,
        stages=costs.parallel.pipeline,
        micro_batches=micro_batches,
        stage_devices=costs.parallel.stage_devices,
        all_to_alls=costs.all_to_alls,
        exchange_bytes=costs.exchange_bytes * tokens,
    )


def _matrix_work(
    costs: ModelCosts, matrix: MatrixCosts, tokens: float, outputs: float, skew: float
) -> PartWork:
    if matrix.name == "head":
        return PartWork(
            "head",
            matrix.arithmetic,
            matrix.token_flop * outputs,
            weights=matrix.weight_bytes if outputs else 0.0,
            activations=matrix.activation_bytes * outputs,
            logits=costs.logits_bytes * outputs,
            rows=outputs,
            formats=matrix.formats,
        )
    weights, load, rows = matrix.weight_bytes, 1.0, tokens
    if matrix.experts:
        everyones = tokens * costs.parallel.groups
        touched = experts_touched(matrix.experts, matrix.active, everyones, skew)
        weights *= touched / matrix.experts
        load = busiest_share(everyones, matrix.active, costs.parallel.expert)
        rows = everyones * matrix.active / touched if touched else 0.0
    return PartWork(
        matrix.name,
        matrix.arithmetic,
        matrix.token_flop * tokens * load,
        weights=min(matrix.weight_bytes, weights * load),
        activations=matrix.activation_bytes * tokens,
        rows=rows,
        formats=matrix.formats,
    )


def _attention_work(costs: AttentionCosts, span: Span, part: float) -> list[PartWork]:
    work = []
    if span.decode:
        work.append(
            PartWork(
                "decode attention",
                "bf16",
                costs.pair_flop * span.decode * part,
                kv_read=costs.kv_bytes * span.decode * part,
            )
        )
    if span.prefill_pairs:
        work.append(
            PartWork(
                "prefill attention",
                "bf16",
                costs.prefill_pair_flop * span.prefill_pairs * part,
                kv_read=costs.kv_bytes * span.prefill_reads * part,
            )
        )
    return work
