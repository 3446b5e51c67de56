"""A measured point as a sum of step times: what the fit needs of it, with everything fixed but the constants.

Which tokens each step of a closed loop computes does not depend on how long steps take, so the load is
simulated once per point; a mean TPOT, a mean TTFT or a rate is then a weighted sum of the steps' seconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rooftree.planner.calibration.vector import INDEX, NAMES, Vector, Width, arithmetic_width, reach, width_of
from rooftree.planner.simulation import Run, Segment
from rooftree.roofline.costs import AttentionCosts, MatrixCosts, ModelCosts
from rooftree.roofline.experts import busiest_share
from rooftree.roofline.time import arithmetic_rate, link_rate
from rooftree.specs.device import DeviceSpec

Array = NDArray[np.floating[Any]]

MOST_GROUPS = 64


@dataclass(frozen=True, slots=True)
class Part:
    """Seconds of one part at full rates, per segment; ``memory`` and ``arithmetic`` are its constants."""

    bytes_seconds: Array
    flop_seconds: Array
    memory: int
    arithmetic: int
    experts: bool


@dataclass(frozen=True, slots=True)
class StepTable:
    """Every segment of a simulated load at published rates. Arrays are parts x segments, or segments.

    Attributes:
        bytes_seconds, flop_seconds: of each part; bytes at the published rate times ``reach``.
        memory, arithmetic: index of each part's two constants; ``experts``: it is of routed experts.
        linear, coefficients: seconds of every step that are constant ``linear[i]`` times ``coefficients[i]``.
        requests: in each segment's steps.
        link_seconds: of each segment's steps, at the published rate.
        reach: see ``vector.reach``.
        layers: that the host launches in every step.
    """

    bytes_seconds: Array
    flop_seconds: Array
    memory: NDArray[np.intp]
    arithmetic: NDArray[np.intp]
    experts: NDArray[np.bool_]
    linear: NDArray[np.intp]
    coefficients: Array
    requests: Array
    link_seconds: Array
    reach: float
    layers: int

    def at(self, segment: int) -> StepTable:
        """One segment alone."""
        one = slice(segment, segment + 1)
        return replace(
            self,
            bytes_seconds=self.bytes_seconds[:, one],
            flop_seconds=self.flop_seconds[:, one],
            requests=self.requests[one],
            link_seconds=self.link_seconds[one],
        )


@dataclass(frozen=True, slots=True)
class StepSum:
    """``sum(weights * step seconds)``, an ``Observation``.

    Attributes:
        log_measured: logarithm of the measured seconds.
        table: the steps.
        weights: of each segment, its number of steps included.
        frontend: the constant delay before the first token is part of the sum.
    """

    log_measured: float
    table: StepTable
    weights: Array
    frontend: bool = False

    def predict(self, vector: Vector) -> tuple[float, Vector]:
        """Logarithm of the sum, and its derivatives."""
        constants, table = np.exp(vector), self.table
        factors = np.where(table.experts, constants[INDEX["experts"]], 1.0)
        memory = table.bytes_seconds / (constants[table.memory] * factors)[:, None]
        arithmetic = table.flop_seconds / (constants[table.arithmetic] * factors)[:, None]
        parts = np.maximum(memory, arithmetic)
        fixed = constants[table.linear] * table.coefficients
        requests = constants[INDEX["request_seconds"]] * table.requests
        link = table.link_seconds / constants[INDEX["link"]]
        steps = parts.sum(axis=0) + requests + link + fixed.sum()
        # No step is shorter than launching its layers takes.
        launch = constants[INDEX["launch_seconds"]] * table.layers
        device = np.where(steps >= launch, self.weights, 0.0)
        waiting = float(self.weights.sum() - device.sum()) * launch
        delay = constants[INDEX["frontend_seconds"]] if self.frontend else 0.0
        gradient = np.zeros(len(NAMES))
        by_memory = np.where(memory >= arithmetic, parts, 0.0) @ device
        by_part = parts @ device
        np.add.at(gradient, table.memory, -by_memory)
        np.add.at(gradient, table.arithmetic, by_memory - by_part)
        gradient[INDEX["experts"]] = -by_part[table.experts].sum()
        gradient[table.linear] += fixed * device.sum()
        gradient[INDEX["request_seconds"]] = requests @ device
        gradient[INDEX["link"]] = -(link @ device)
        gradient[INDEX["launch_seconds"]] = waiting
        gradient[INDEX["frontend_seconds"]] = delay
        total = float(device @ steps) + waiting + delay
        return math.log(total), gradient / total

    def fastest(self, kv_factor: float = 1.0) -> float:
        """Seconds at published rates, without overheads and without the arithmetic of prompts.

        Prefix caches can spare a server its prompts, so only what decoding must read counts; nothing measured
        can be below. ``kv_factor``: K and V may be stored in this share of the bytes.
        """
        is_kv = self.table.memory == INDEX["kv_bandwidth"]
        by_part = self.table.bytes_seconds @ self.weights
        return float(by_part.sum() - (1.0 - kv_factor) * by_part[is_kv].sum()) * self.table.reach


def step_sum(seconds: float, table: StepTable, weights: Array, *, frontend: bool = False) -> StepSum:
    """An observation whose steps are gathered into at most ``MOST_GROUPS`` of like size.

    A step's seconds are piecewise linear in its bytes and FLOP, so the mean of like steps stands for them.
    """
    used = np.flatnonzero(weights)
    used = used[np.argsort(table.flop_seconds.sum(axis=0)[used], kind="stable")]
    share = np.cumsum(weights[used]) / weights.sum()
    starts = np.unique(np.searchsorted(share, np.arange(MOST_GROUPS) / MOST_GROUPS))
    groups = np.add.reduceat(weights[used], starts)

    def mean(values: Array) -> Array:
        gathered: Array = np.add.reduceat(values[..., used] * weights[used], starts, axis=-1) / groups
        return gathered

    gathered = replace(
        table,
        bytes_seconds=mean(table.bytes_seconds),
        flop_seconds=mean(table.flop_seconds),
        requests=mean(table.requests),
        link_seconds=mean(table.link_seconds),
    )
    return StepSum(math.log(seconds), gathered, groups, frontend)


def step_table(segments: Sequence[Segment], costs: ModelCosts, device: DeviceSpec, bits: float) -> StepTable:
    """The segments' steps, a whole load at once: ``step_work`` and ``link_seconds`` over arrays.

    ``bits``: mean bits of a stored weight, which choose the constants.
    """
    micro_batches = [max(1, min(costs.parallel.pipeline, int(s.batch.sequences))) for s in segments]
    share = 1.0 / np.array(micro_batches, dtype=np.float64)
    tokens = np.array([segment.batch.tokens for segment in segments]) * share
    outputs = np.array([segment.batch.outputs for segment in segments]) * share
    sequences = np.array([segment.batch.sequences for segment in segments]) * share
    width = width_of(bits)
    parts = [_matrix_part(costs, matrix, tokens, outputs, device, width) for matrix in costs.matrices]
    for index, attention in enumerate(costs.attention):
        parts.extend(_attention_parts(attention, segments, index, share, device))
    link = np.zeros(len(segments))
    if costs.all_reduces:
        tensor = costs.parallel.tensor
        scale = 2 * (tensor - 1) / tensor * costs.all_reduces / link_rate(device, tensor)
        link = tokens * costs.hidden_bytes * scale
    write = tokens * costs.kv_write_bytes + sequences * costs.state_bytes
    parts.append(_part("kv", write, tokens * costs.state_flop, device, "bf16", width))
    linear = {
        "step_seconds": 1,
        "layer_seconds": costs.layers,
        "expert_layer_seconds": costs.expert_layers,
        "all_reduce_seconds": costs.all_reduces + costs.parallel.pipeline - 1,
    }
    return StepTable(
        bytes_seconds=np.array([part.bytes_seconds for part in parts]),
        flop_seconds=np.array([part.flop_seconds for part in parts]),
        memory=np.array([part.memory for part in parts]),
        arithmetic=np.array([part.arithmetic for part in parts]),
        experts=np.array([part.experts for part in parts]),
        linear=np.array([INDEX[name] for name in linear]),
        coefficients=np.array(list(linear.values()), dtype=np.float64),
        requests=sequences,
        link_seconds=link,
        reach=reach(device),
        layers=costs.layers,
    )


def _matrix_part(
    costs: ModelCosts, matrix: MatrixCosts, tokens: Array, outputs: Array, device: DeviceSpec, width: Width
) -> Part:
    is_head = matrix.name == "head"
    rows = outputs if is_head else tokens
    weights = np.full(len(tokens), matrix.weight_bytes)
    load = np.ones(len(tokens))
    if is_head:
        weights *= rows > 0
    if matrix.experts:
        touched = 1.0 - (1.0 - matrix.active / matrix.experts) ** tokens
        load = np.array([busiest_share(t, matrix.active, costs.parallel.expert) for t in tokens])
        weights *= np.minimum(1.0, touched * load)
    moved = matrix.activation_bytes + (costs.logits_bytes if is_head else 0.0)
    num_bytes, flop = weights + rows * moved, rows * matrix.token_flop * load
    return _part(matrix.name, num_bytes, flop, device, matrix.arithmetic, width)


def _attention_parts(
    costs: AttentionCosts, segments: Sequence[Segment], index: int, share: Array, device: DeviceSpec
) -> list[Part]:
    spans = [segment.batch.spans[index] for segment in segments]
    decode = np.array([span.decode for span in spans]) * share
    pairs = np.array([span.prefill_pairs for span in spans]) * share
    reads = np.array([span.prefill_reads for span in spans]) * share
    return [
        _part("kv", decode * costs.kv_bytes, decode * costs.pair_flop, device, "bf16", "16"),
        _part("kv", reads * costs.kv_bytes, pairs * costs.prefill_pair_flop, device, "bf16", "16"),
    ]


def _part(
    name: str, num_bytes: Array, flop: Array, device: DeviceSpec, arithmetic: str, width: Width
) -> Part:
    if name == "kv":
        memory, rate = "kv_bandwidth", "attention_arithmetic"
    else:
        memory, rate = f"weight_bandwidth_{width}", f"arithmetic_{arithmetic_width(arithmetic)}"
    return Part(
        bytes_seconds=num_bytes / (device.bandwidth * reach(device)),
        flop_seconds=flop / arithmetic_rate(device, arithmetic),
        memory=INDEX[memory],
        arithmetic=INDEX[rate],
        experts=name == "experts",
    )


def tpot_weights(run: Run, outputs: Sequence[int]) -> Array:
    """Weights of the mean over requests of (last - first token) / (tokens - 1).

    The run's times must be segment numbers: its clock returned 1 for every segment.
    """
    change = np.zeros(len(run.segments) + 1)
    counted = [index for index, output in enumerate(outputs) if output > 1]
    for index in counted:
        share = 1.0 / (outputs[index] - 1) / len(counted)
        change[round(run.first[index])] += share
        change[round(run.last[index])] -= share
    return np.cumsum(change)[:-1] * _steps(run)


def ttft_weights(run: Run) -> Array:
    """Weights of the mean over requests of (first token - arrival); see ``tpot_weights``."""
    change = np.zeros(len(run.segments) + 1)
    for arrival, first in zip(run.arrival, run.first, strict=True):
        change[round(arrival)] += 1.0 / len(run.first)
        change[round(first)] -= 1.0 / len(run.first)
    return np.cumsum(change)[:-1] * _steps(run)


def rate_weights(run: Run, begin: int, end: int) -> Array:
    """Weights of the seconds per generated token between two segments."""
    steps = _steps(run)
    tokens = sum(segment.batch.outputs * segment.steps for segment in run.segments[begin:end])
    weights = np.zeros(len(steps))
    weights[begin:end] = steps[begin:end] / tokens
    return weights


def _steps(run: Run) -> Array:
    return np.array([segment.steps for segment in run.segments], dtype=np.float64)
