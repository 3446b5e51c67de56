"""Constants of one stack, from few of its points and from what all others have shown."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rooftree.planner.calibration.cases import REUSED, Case
from rooftree.planner.calibration.fit import Fit, Observation, fit
from rooftree.planner.calibration.vector import (
    INDEX,
    NAMES,
    SPREAD,
    START,
    Vector,
    covariance_of,
)

MOST_POINTS = 20
"""Points that a stack is calibrated on, at most."""

GENERAL_SIGMA = 0.06
STACK_SIGMA = 0.06
KIND_SIGMA = {"tpot": 1.0, "throughput": 1.0, "ttft": 2.0, "prefill": 3.0}
"""How much worse than a TPOT the model explains each kind of figure."""

_REUSE_COST = 3.0
"""How much better, in the fit's cost, the assumption of reused prompts must be to be made."""

STEP_SPREAD = 1.5

_STACK_SPREAD: Vector = np.array([1.0 if name.endswith("seconds") else 0.3 for name in NAMES])


@dataclass(frozen=True, slots=True)
class StackFit:
    """Constants of a stack, and the share of prompts that its benchmark seems to have found cached."""

    vector: Vector
    reused: float = 0.0

    def log_error(self, case: Case) -> float:
        """Logarithm of predicted over measured."""
        observation = _observation(case, self.reused)
        return observation.predict(self.vector)[0] - observation.log_measured


def fit_general(cases: Sequence[Case], start: Vector | None = None, iterations: int = 20) -> Vector:
    """Constants of an unknown stack: all stacks weigh alike, however many points each has."""
    sizes = Counter(case.stack for case in cases)
    sigmas = np.array([_sigma(case, GENERAL_SIGMA) * math.sqrt(sizes[case.stack] / 3) for case in cases])
    return fit(
        [case.observation for case in cases],
        START,
        covariance_of(SPREAD),
        np.maximum(sigmas, GENERAL_SIGMA),
        start=start,
        iterations=iterations,
    ).vector


def fit_stack(cases: Sequence[Case], general: Vector) -> StackFit:
    """Constants of a stack from its points, with the general ones as the prior."""
    sigmas = np.array([_sigma(case, STACK_SIGMA) for case in cases])
    choices = []
    for reused in (0.0, *REUSED) if any(case.reused for case in cases) else (0.0,):
        observations = [_observation(case, reused) for case in cases]
        best = min(
            (_fit(observations, general, sigmas, start) for start in _starts(cases, general)), key=_cost
        )
        choices.append((best.cost + (_REUSE_COST if reused else 0.0), reused, best.vector))
    _, reused, vector = min(choices, key=lambda choice: choice[0])
    return StackFit(vector, reused)


def fit_observations(observations: Sequence[Observation], general: Vector, sigma: float) -> Vector:
    """Constants from many single steps of one server.

    They say so much that the prior may be wide, and bounds too: fractions above 1 mean that the device does
    more than its stated rates.
    """
    covariance = covariance_of(np.full(len(NAMES), STEP_SPREAD))
    return fit(observations, general, covariance, sigma, iterations=60, loosened=20.0).vector


def spread_over(cases: Sequence[Case], most: int = MOST_POINTS) -> list[Case]:
    """At most so many of the cases, spread evenly over the measured range."""
    ordered = sorted(cases, key=lambda case: (case.point.batch * case.point.input, case.point.id))
    if len(ordered) <= most:
        return ordered
    return [ordered[round(index * (len(ordered) - 1) / (most - 1))] for index in range(most)]


def _starts(cases: Sequence[Case], general: Vector) -> list[Vector]:
    """Where to begin: the prior; and an engine that the host's launching holds back."""
    steps = [
        math.exp(case.observation.log_measured) / case.observation.table.layers
        for case in cases
        if case.point.kind == "tpot"
    ]
    if not steps:
        return [general]
    bound = general.copy()
    bound[INDEX["launch_seconds"]] = math.log(0.9 * min(steps))
    return [general, bound]


def _fit(observations: list[Observation], general: Vector, sigmas: Vector, start: Vector) -> Fit:
    return fit(observations, general, covariance_of(_STACK_SPREAD), sigmas, start=start)


def _cost(result: Fit) -> float:
    return result.cost


def _observation(case: Case, reused: float) -> Observation:
    return case.reused[REUSED.index(reused)] if reused and case.reused else case.observation


def _sigma(case: Case, sigma: float) -> float:
    return sigma * KIND_SIGMA[case.point.kind]
