"""How far predictions are from measurements: every point predicted by constants that never saw it.

Two questions, two splits. *Calibrated*: a stack's points are dealt into folds; each fold is predicted by
constants fitted to at most 20 points of the other folds. *Unseen*: a stack is predicted by constants fitted
to all other stacks. TTFT is judged only where the load protocol is published.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rooftree.planner.calibration.cases import Case, FindDevice, build_cases
from rooftree.planner.calibration.points import Point, Unusable
from rooftree.planner.calibration.stack import MOST_POINTS, StackFit, fit_general, fit_stack, spread_over
from rooftree.planner.calibration.vector import Vector

Split = Literal["calibrated", "unseen"]

FOLDS = 5
FEWEST_POINTS = 6
"""A stack with fewer measured loads is judged as unseen only."""

IMPOSSIBLE = 0.97
"""A measurement below this share of what published rates allow is reported as impossible."""

LAUNCH_BOUND_ENGINES = ("splitwise",)
"""Engines whose steps the host bounds: they show how fast it launches kernels, not what a device reaches."""

BAND_SHARE = 0.87
"""Bands are made to hold this share of held-out points."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """One point and what constants that had not seen it say. ``low`` to ``high`` is the stated band."""

    point: Point
    stack: str
    split: Split
    kind: str
    expert_model: bool
    predicted: float
    measured: float
    low: float
    high: float

    @property
    def log_error(self) -> float:
        """Logarithm of predicted over measured."""
        return math.log(self.predicted / self.measured)

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted / self.measured - 1.0

    @property
    def in_band(self) -> bool:
        """The measurement lies in the band."""
        return self.low <= self.measured <= self.high


@dataclass(frozen=True, slots=True)
class Impossible:
    """A measurement that is faster than the device's published rates allow."""

    point: Point
    fastest: float


@dataclass(frozen=True, slots=True)
class Summary:
    """Errors of a group: share of the measured value; ``bias`` is the median signed error."""

    group: str
    points: int
    median: float
    mean: float
    p90: float
    within_20: float
    bias: float
    in_band: float


@dataclass(frozen=True, slots=True)
class Validation:
    """Everything that ``rooftree plan validate`` shows."""

    predictions: tuple[Prediction, ...]
    impossible: tuple[Impossible, ...]
    unusable: tuple[Unusable, ...]
    memory_points: int
    memory_refused: tuple[Point, ...]
    general: Vector
    stacks: dict[str, StackFit]
    stack_points: dict[str, int]

    def training_points(self, stack: str) -> int:
        """Loads that the stack's constants were fitted to."""
        return min(MOST_POINTS, self.stack_points[stack])

    def select(self, split: Split, kind: str) -> list[Prediction]:
        """Predictions of one split and one kind of figure."""
        return [p for p in self.predictions if p.split == split and p.kind == kind]


def validate(
    points: Sequence[Point], unusable: Iterable[Unusable], find_device: FindDevice, more: Sequence[Point] = ()
) -> Validation:
    """Judge the model on points.

    ``more``: further points, which take part in what all stacks teach but are not judged.
    """
    cases, unknown = build_cases(points, find_device)
    further, _ = build_cases(more, find_device)
    possible = [case for case in cases if not is_impossible(case)]
    known = [case for case in further if not is_impossible(case)]
    general = general_constants([*known, *possible])
    raw = [*_calibrated(possible, general), *_unseen(possible, known, general)]
    return Validation(
        predictions=tuple(with_bands(raw)),
        impossible=tuple(Impossible(case.point, case.bound_seconds) for case in cases if is_impossible(case)),
        unusable=(*unusable, *unknown),
        memory_points=len({_load(case.point) for case in cases}),
        memory_refused=tuple(
            {_load(case.point): case.point for case in cases if not case.budget.fits}.values()
        ),
        general=general,
        stacks=fitted_stacks(possible, general),
        stack_points={stack: len(_loads(members)) for stack, members in _by_stack(possible).items()},
    )


def is_impossible(case: Case) -> bool:
    """The measurement is faster than published rates; a TTFT depends on queues and cannot be judged so."""
    if case.point.kind == "ttft":
        return False
    return math.exp(case.observation.log_measured) < IMPOSSIBLE * case.bound_seconds


def general_constants(cases: Sequence[Case], start: Vector | None = None, iterations: int = 20) -> Vector:
    """What all stacks teach together. Engines that the host's launching binds teach nothing about devices."""
    return fit_general([case for case in cases if _teaches(case)], start, iterations)


def fitted_stacks(cases: Iterable[Case], general: Vector) -> dict[str, StackFit]:
    """Constants of every stack with enough points, each from at most 20 loads."""
    return {
        stack: fit_stack(_training(members, _loads(members)), general)
        for stack, members in _by_stack(cases).items()
        if len(_loads(members)) >= FEWEST_POINTS
    }


def summarise(predictions: Iterable[Prediction], group: Callable[[Prediction], str]) -> list[Summary]:
    """Errors by group, in alphabetical order."""
    groups: dict[str, list[Prediction]] = defaultdict(list)
    for prediction in predictions:
        groups[group(prediction)].append(prediction)
    return [_summary(name, groups[name]) for name in sorted(groups)]


def with_bands(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Predictions with the band that the errors of all other stacks of their class suggest."""
    banded = []
    for prediction in predictions:
        half = half_width(
            other.log_error
            for other in predictions
            if _band_class(other) == _band_class(prediction) and other.stack != prediction.stack
        )
        banded.append(
            Prediction(
                prediction.point,
                prediction.stack,
                prediction.split,
                prediction.kind,
                prediction.expert_model,
                prediction.predicted,
                prediction.measured,
                prediction.predicted / math.exp(half),
                prediction.predicted * math.exp(half),
            )
        )
    return banded


def half_width(log_errors: Iterable[float]) -> float:
    """Half of a band's width, in logarithms, that holds ``BAND_SHARE`` of these errors."""
    sizes = np.abs(list(log_errors))
    return float(np.quantile(sizes, BAND_SHARE)) if len(sizes) else math.log(2.0)


def _band_class(prediction: Prediction) -> tuple[str, str, bool]:
    """Points whose errors are alike. Mixtures of experts are less well known where the stack is not."""
    experts = prediction.expert_model and prediction.split == "unseen"
    return prediction.split, prediction.kind, experts


def _teaches(case: Case) -> bool:
    return case.point.kind in ("tpot", "throughput") and case.point.engine not in LAUNCH_BOUND_ENGINES


def _calibrated(cases: Sequence[Case], general: Vector) -> Iterable[Prediction]:
    for stack, members in _by_stack(cases).items():
        loads = _loads(members)
        if len(loads) < FEWEST_POINTS:
            continue
        for fold in range(FOLDS):
            held = set(loads[fold::FOLDS])
            fitted = fit_stack(_training(members, [load for load in loads if load not in held]), general)
            for case in members:
                if _load(case.point) in held and _judged(case):
                    yield _prediction(case, stack, "calibrated", fitted)


def _unseen(cases: Sequence[Case], known: Sequence[Case], general: Vector) -> Iterable[Prediction]:
    for stack, members in _by_stack(cases).items():
        others = [case for case in (*known, *cases) if case.stack != stack]
        constants = general_constants(others, general, iterations=6)
        for case in members:
            if _judged(case):
                yield _prediction(case, stack, "unseen", StackFit(constants))


def _prediction(case: Case, stack: str, split: Split, constants: StackFit) -> Prediction:
    measured = case.point.seconds
    predicted = measured * math.exp(constants.log_error(case))
    return Prediction(
        case.point, stack, split, case.point.kind, case.is_expert_model, predicted, measured, 0.0, math.inf
    )


def _judged(case: Case) -> bool:
    return case.point.kind != "ttft" or case.point.published


def _training(members: Sequence[Case], loads: Sequence[tuple[object, ...]]) -> list[Case]:
    """Points of at most 20 of the loads: those that say something about steps."""
    chosen = set(loads)
    usable = [case for case in members if _load(case.point) in chosen and _judged(case)]
    kept = {_load(case.point) for case in spread_over(_one_per_load(usable))}
    return [case for case in usable if _load(case.point) in kept]


def _one_per_load(cases: Iterable[Case]) -> list[Case]:
    return list({_load(case.point): case for case in cases}.values())


def _load(point: Point) -> tuple[object, ...]:
    """Points that differ in their metric alone were measured in one run."""
    return (
        point.model,
        point.device,
        point.devices,
        point.tensor,
        point.weight_dtype,
        point.batch,
        point.input,
        point.output,
        point.engine,
        point.version,
        point.protocol,
    )


def _loads(cases: Iterable[Case]) -> list[tuple[object, ...]]:
    return list(dict.fromkeys(_load(case.point) for case in cases))


def _by_stack(cases: Iterable[Case]) -> dict[str, list[Case]]:
    stacks: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        stacks[case.stack].append(case)
    return stacks


def _summary(group: str, predictions: Sequence[Prediction]) -> Summary:
    errors = np.array([prediction.error for prediction in predictions])
    sizes = np.abs(errors)
    return Summary(
        group=group,
        points=len(sizes),
        median=float(np.median(sizes)),
        mean=float(sizes.mean()),
        p90=float(np.quantile(sizes, 0.9)),
        within_20=float((sizes <= 0.2).mean()),
        bias=float(np.median(errors)),
        in_band=float(np.mean([prediction.in_band for prediction in predictions])),
    )
