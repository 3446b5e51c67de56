"""The constants that are fitted, as one vector of logarithms, and their meaning for a stack."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rooftree.roofline.efficiency import Efficiency
from rooftree.specs.device import DeviceSpec

Vector = NDArray[np.floating[Any]]
Width = Literal["16", "8", "4"]


@dataclass(frozen=True, slots=True)
class Constant:
    """One fitted number: where the search starts, how far a fit may draw it away, and its bounds.

    ``spread`` is the standard deviation of its logarithm before anything is measured.
    """

    name: str
    start: float
    spread: float
    low: float
    high: float


# Starts are kernel measurements where there are any (docs/planner.md); fractions stay below 1 since nothing
# measured is faster than the published rates.
CONSTANTS = (
    Constant("weight_bandwidth_16", 0.75, 0.25, 0.25, 0.97),
    Constant("weight_bandwidth_8", 0.60, 0.30, 0.15, 0.97),
    Constant("weight_bandwidth_4", 0.50, 0.30, 0.10, 0.97),
    Constant("kv_bandwidth", 0.70, 0.30, 0.15, 0.97),
    Constant("arithmetic_16", 0.70, 0.30, 0.10, 0.97),
    Constant("arithmetic_8", 0.55, 0.30, 0.10, 0.97),
    Constant("arithmetic_4", 0.45, 0.40, 0.05, 0.97),
    Constant("attention_arithmetic", 0.40, 0.50, 0.03, 0.97),
    Constant("experts", 0.60, 0.50, 0.05, 1.20),
    Constant("link", 0.60, 0.50, 0.05, 1.00),
    Constant("layer_seconds", 10e-6, 0.70, 1e-8, 5e-4),
    Constant("expert_layer_seconds", 10e-6, 1.00, 1e-8, 1e-3),
    Constant("all_reduce_seconds", 8e-6, 0.50, 1e-7, 1e-4),
    Constant("step_seconds", 1e-3, 0.80, 1e-7, 3e-2),
    Constant("request_seconds", 10e-6, 0.80, 1e-8, 5e-4),
    Constant("launch_seconds", 20e-6, 1.00, 1e-8, 2e-3),
    Constant("frontend_seconds", 30e-3, 1.00, 1e-4, 1.0),
)
NAMES = tuple(constant.name for constant in CONSTANTS)
INDEX: Mapping[str, int] = {name: index for index, name in enumerate(NAMES)}
START: Vector = np.log([constant.start for constant in CONSTANTS])
SPREAD: Vector = np.array([constant.spread for constant in CONSTANTS])
LOW: Vector = np.log([constant.low for constant in CONSTANTS])
HIGH: Vector = np.log([constant.high for constant in CONSTANTS])


# Constants that rise and fall together from one engine or device to the next.
_TOGETHER = (
    ("weight_bandwidth_16", "weight_bandwidth_8", "weight_bandwidth_4"),
    ("arithmetic_16", "arithmetic_8", "arithmetic_4"),
)
_CORRELATION = 0.8


def covariance_of(spread: Vector) -> Vector:
    """A prior's covariance matrix from the standard deviation of each constant's logarithm."""
    correlation = np.eye(len(NAMES))
    for names in _TOGETHER:
        for one in names:
            for other in names:
                if one != other:
                    correlation[INDEX[one], INDEX[other]] = _CORRELATION
    matrix: Vector = correlation * np.outer(spread, spread)
    return matrix


def width_of(bits: float) -> Width:
    """Which constants weights use that are stored in that many bits on average."""
    if bits > 12:
        return "16"
    return "8" if bits > 6.5 else "4"


def arithmetic_width(arithmetic: str) -> Width:
    """Which arithmetic constant a matrix product uses."""
    return "4" if arithmetic == "fp4" else "8" if arithmetic in ("fp8", "int8") else "16"


REFERENCE_REACH = 0.75


def reach(device: DeviceSpec) -> float:
    """Bandwidth that matrix products reach on a device, measured, over that of the usual device.

    Fitted fractions are those of the usual device, so a device that was measured by its kernels alone starts
    from there. 1 where it was not.
    """
    measured = device.decode_bandwidth_fraction
    return 1.0 if measured is None else sum(measured) / 2 / REFERENCE_REACH


def efficiency_of(
    constants: Mapping[str, float], device: DeviceSpec, weights: Width, arithmetic: Width
) -> Efficiency:
    """The constants on a device, for weights of that width whose products run in that arithmetic."""
    reached = reach(device)
    weight_bandwidth, kv_bandwidth = constants[f"weight_bandwidth_{weights}"], constants["kv_bandwidth"]
    return Efficiency(
        weight_bandwidth=min(max(1.0, weight_bandwidth), weight_bandwidth * reached),
        kv_bandwidth=min(max(1.0, kv_bandwidth), kv_bandwidth * reached),
        arithmetic=constants[f"arithmetic_{arithmetic}"],
        attention_arithmetic=constants["attention_arithmetic"],
        experts=constants["experts"],
        link=constants["link"],
        layer_seconds=constants["layer_seconds"],
        expert_layer_seconds=constants["expert_layer_seconds"],
        all_reduce_seconds=constants["all_reduce_seconds"],
        step_seconds=constants["step_seconds"],
        request_seconds=constants["request_seconds"],
        launch_seconds=constants["launch_seconds"],
    )


def as_mapping(vector: Vector) -> dict[str, float]:
    """The constants by name, with four digits: more is not known."""
    return {name: float(f"{math.exp(value):.4g}") for name, value in zip(NAMES, vector, strict=True)}


def as_vector(constants: Mapping[str, float]) -> Vector:
    """The logarithms of constants by name."""
    return np.log([constants[name] for name in NAMES])
