"""The engine's constants from measured products and steps.

A step is a sum of few terms, each proportional to one constant (``roofline.time``), so the constants come of
linear least squares: of relative errors, none below zero, outliers held down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rooftree.roofline.batch import Batch
from rooftree.roofline.clock import step_clock
from rooftree.roofline.costs import ModelCosts
from rooftree.roofline.efficiency import Efficiency, ProductRates
from rooftree.roofline.machine import Quality
from rooftree.roofline.time import arithmetic_rate, part_seconds
from rooftree.roofline.work import step_work
from rooftree.specs.device import DeviceSpec

Floats = npt.NDArray[np.float64]

_TERMS = ("layers", "activations", "products", "decode attention", "prefill attention")
_LEAST = dict.fromkeys(_TERMS, 1e-30) | {"decode attention": 1.0, "prefill attention": 1.0}
"""Nothing takes less than no time, and attention no less than at the peak rate."""
_OUTLIER = 0.05
"""Relative error from which a step's weight falls."""
_PRODUCTS_SPREAD = 0.1
"""How far products in a step may well be from products alone; a fit needs more than noise to go further."""
_ROUNDS = 12


@dataclass(frozen=True, slots=True)
class ProductSample:
    """One pass of ``rows`` rows through ``weights`` weights of a format, ``num_bytes`` as packed."""

    format: str
    arithmetic: str
    rows: int
    weights: int
    num_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class StepSample:
    """One kind of step of a model. ``outside``: the part of the seconds that no kernel takes."""

    costs: ModelCosts
    batch: Batch
    seconds: float
    outside: float


def product_rates(samples: Sequence[ProductSample], device: DeviceSpec) -> tuple[ProductRates, ...]:
    """Fractions of the device's arithmetic by format and rows."""
    by_format: dict[str, list[ProductSample]] = {}
    for sample in samples:
        by_format.setdefault(sample.format, []).append(sample)
    rates = []
    for name, group in by_format.items():
        ordered = sorted(group, key=lambda sample: sample.rows)
        fractions = [
            2 * s.weights * s.rows / (s.seconds * arithmetic_rate(device, s.arithmetic)) for s in ordered
        ]
        rates.append(ProductRates(name, tuple(s.rows for s in ordered), tuple(fractions)))
    return tuple(rates)


def weight_bandwidth(samples: Sequence[ProductSample], device: DeviceSpec) -> float:
    """Largest fraction of the read bandwidth that a pass of one row reaches."""
    return max(s.num_bytes / (s.seconds * device.bandwidth) for s in samples if s.rows == 1)


def fit_efficiency(
    products: Sequence[ProductSample], steps: Sequence[StepSample], device: DeviceSpec
) -> Efficiency:
    """The constants that explain all of them.

    Products alone give the shape of their curve; steps say by how much they are slower there, and all else.
    """
    read = weight_bandwidth(products, device)
    alone = Efficiency(weight_bandwidth=read, kv_bandwidth=read, products=product_rates(products, device))
    step_seconds, request_seconds = _fit_outside(steps)
    found = _fit_terms(steps, [_terms(step, device, alone) for step in steps])
    slower = found["products"]
    return replace(
        alone,
        weight_bandwidth=read / slower,
        arithmetic=1.0,
        products=tuple(
            ProductRates(r.format, r.rows, tuple(f / slower for f in r.fractions)) for r in alone.products
        ),
        attention_arithmetic=1 / found["decode attention"],
        prefill_attention=found["decode attention"] / found["prefill attention"],
        layer_seconds=found["layers"],
        activation_seconds=found["activations"],
        step_seconds=step_seconds,
        request_seconds=request_seconds,
    )


def fit_quality(steps: Sequence[StepSample], device: DeviceSpec, efficiency: Efficiency) -> Quality:
    """Relative errors of the steps' seconds."""
    clocks = {id(step.costs): step_clock(step.costs, device, efficiency) for step in steps}
    predicted = np.array([clocks[id(step.costs)].seconds(step.batch) for step in steps])
    errors = np.abs(predicted / np.array([step.seconds for step in steps]) - 1)
    return Quality(len(steps), float(np.median(errors)), float(np.quantile(errors, 0.9)))


@dataclass(frozen=True, slots=True)
class _StepTerms:
    """Of each constant, what it is multiplied with. ``cache_seconds``: of reading K and V in decode."""

    values: Mapping[str, float]
    cache_seconds: float


def _fit_terms(steps: Sequence[StepSample], terms: Sequence[_StepTerms]) -> dict[str, float]:
    """The constants of all terms.

    Decode attention takes the longer of bytes and FLOP. Where bytes bind, its time is known and says nothing
    of the constant of its FLOP.
    """
    measured = np.array([step.seconds - step.outside for step in steps])
    reading = np.array([term.cache_seconds for term in terms])
    matrix = np.array([[term.values[name] for name in _TERMS] for term in terms])
    decode = _TERMS.index("decode attention")
    found = np.full(len(_TERMS), np.inf)
    for _ in range(_ROUNDS):
        with np.errstate(invalid="ignore"):
            bound = reading > np.nan_to_num(matrix[:, decode] * found[decode])
        free = matrix.copy()
        free[bound, decode] = 0.0
        left = np.maximum(measured - np.where(bound, reading, 0.0), 0.01 * measured)
        # One more line says that products in a step are about as fast as alone: where steps are noisy, little
        # else tells what a product costs from what its rows cost besides.
        alone = np.zeros((1, len(_TERMS)))
        alone[0, _TERMS.index("products")] = 1.0
        spread = np.append(measured, _PRODUCTS_SPREAD / _OUTLIER)
        before, found = found, _robust(np.vstack([free, alone]), np.append(left, 1.0), spread)
        if not found[decode]:  # no step shows it
            found[decode] = before[decode] if np.isfinite(before[decode]) else _LEAST["decode attention"]
        if np.array_equal(before, found):
            break
    return {name: max(float(value), _LEAST[name]) for name, value in zip(_TERMS, found, strict=True)}


def _terms(step: StepSample, device: DeviceSpec, alone: Efficiency) -> _StepTerms:
    work = step_work(step.costs, step.batch)
    values = dict.fromkeys(_TERMS, 0.0)
    values["layers"] = work.layers
    values["activations"] = sum(part.activations + part.logits for part in work.parts)
    reading = 0.0
    for part in work.parts:
        memory, arithmetic = part_seconds(part, device, alone)
        if part.name in ("decode attention", "prefill attention"):
            values[part.name] += arithmetic
            reading += memory if part.name == "decode attention" else 0.0
        else:
            values["products"] += max(memory, arithmetic)
    return _StepTerms(values, reading)


def _fit_outside(steps: Sequence[StepSample]) -> tuple[float, float]:
    """Seconds of a step, and of each request in it, that no kernel takes."""
    outside = np.array([step.outside for step in steps])
    matrix = np.array([[1.0, step.batch.sequences] for step in steps])
    step, request = _robust(matrix, outside, np.maximum(outside, 1e-9))
    return float(step), float(request)


def _robust(matrix: Floats, values: Floats, scale: Floats) -> Floats:
    """Constants >= 0 with matrix @ constants near values, by errors over ``scale``; outliers held down."""
    weights: Floats = np.ones(len(values))
    constants: Floats = np.zeros(matrix.shape[1])
    for _ in range(_ROUNDS):
        factor = weights / scale
        constants = non_negative(matrix * factor[:, None], values * factor)
        errors = np.abs(matrix @ constants - values) / scale
        weights = np.sqrt(np.minimum(1.0, _OUTLIER / np.maximum(errors, 1e-12)))
    return constants


def non_negative(matrix: Floats, values: Floats, sweeps: int = 2000) -> Floats:
    """Least squares with no constant below zero, by coordinate descent."""
    size = np.linalg.norm(matrix, axis=0)
    size = np.where(size > 0, size, 1.0)
    scaled = matrix / size
    gram, right = scaled.T @ scaled, scaled.T @ values
    found = np.zeros(len(right))
    for _ in range(sweeps):
        before = found.copy()
        for j in range(len(found)):
            if gram[j, j] > 0:
                found[j] = max(0.0, found[j] + (right[j] - gram[j] @ found) / gram[j, j])
        if np.abs(found - before).max() <= 1e-12 * max(1e-12, np.abs(found).max()):
            break
    solution: Floats = found / size
    return solution
