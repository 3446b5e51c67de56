"""Least squares in logarithms, with a prior: Gauss and Newton, damped (Levenberg, Marquardt)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from rooftree.planner.calibration.vector import HIGH, LOW, Vector


class Observation(Protocol):
    """A measured time and the model's answer to it."""

    @property
    def log_measured(self) -> float:
        """Logarithm of the measured seconds."""

    def predict(self, vector: Vector) -> tuple[float, Vector]:
        """Logarithm of the predicted seconds, and its derivatives by the vector."""


class Fit(NamedTuple):
    """The fitted vector, and the cost it leaves: half the sum of squares in sigmas, prior included."""

    vector: Vector
    cost: float


def fit(
    observations: Sequence[Observation],
    prior: Vector,
    covariance: Vector,
    sigma: float | Vector = 0.08,
    *,
    start: Vector | None = None,
    iterations: int = 20,
    huber: float = 1.0,
    loosened: float = 1.0,
) -> Fit:
    """The vector that explains the observations and stays near the prior.

    Args:
        observations: what was measured; may be empty.
        prior, covariance: mean and covariance matrix of the vector before.
        sigma: standard deviation of an observation's logarithm, one for all or one each.
        start: where to begin; None: the prior.
        iterations: at most.
        loosened: factor by which bounds are widened, where the device's stated rates may be wrong.
        huber: residuals above this many sigma count linearly, so that an outlier does not rule.
    """
    low, high = LOW - np.log(loosened), HIGH + np.log(loosened)
    current: Vector = np.clip(prior if start is None else start, low, high)
    damping = 1e-2
    precision = np.linalg.inv(covariance)
    sigmas: Vector = np.broadcast_to(np.asarray(sigma, dtype=np.float64), len(observations))
    residuals, jacobian = _residuals(observations, current, sigmas)
    cost = _cost(residuals, _change(current, prior), precision, huber)
    for _ in range(iterations):
        weights = _huber_weights(residuals, huber)
        gradient = jacobian.T @ (weights * residuals) + precision @ (current - prior)
        hessian = (jacobian.T * weights) @ jacobian + precision
        improved = False
        for _ in range(8):
            step: Vector = np.linalg.solve(hessian + damping * np.diag(np.diag(hessian)), -gradient)
            trial: Vector = np.clip(current + step, low, high)
            trial_residuals, trial_jacobian = _residuals(observations, trial, sigmas)
            trial_cost = _cost(trial_residuals, _change(trial, prior), precision, huber)
            if trial_cost < cost:
                improved = cost - trial_cost > 1e-6 * cost
                current, cost = trial, trial_cost
                residuals, jacobian = trial_residuals, trial_jacobian
                damping = max(damping / 5, 1e-7)
                break
            damping *= 5
        if not improved:
            break
    return Fit(current, cost)


def _huber_weights(residuals: Vector, huber: float) -> Vector:
    size = np.maximum(np.abs(residuals), 1e-12)
    weights: Vector = np.minimum(1.0, huber / size)
    return weights


def _change(vector: Vector, prior: Vector) -> Vector:
    change: Vector = vector - prior
    return change


def _residuals(observations: Sequence[Observation], vector: Vector, sigma: Vector) -> tuple[Vector, Vector]:
    residuals = np.zeros(len(observations))
    jacobian = np.zeros((len(observations), len(vector)))
    for index, observation in enumerate(observations):
        predicted, derivatives = observation.predict(vector)
        residuals[index] = (predicted - observation.log_measured) / sigma[index]
        jacobian[index] = derivatives / sigma[index]
    return residuals, jacobian


def _cost(residuals: Vector, change: Vector, precision: Vector, huber: float) -> float:
    size = np.abs(residuals)
    data = np.where(size <= huber, size**2 / 2, huber * (size - huber / 2)).sum()
    return float(data + change @ precision @ change / 2)
