"""The constants file, from a validation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from rooftree.planner.calibration.validate import Prediction, Split, Validation, half_width
from rooftree.planner.calibration.vector import as_mapping
from rooftree.planner.constants import FORMAT

KINDS = ("tpot", "ttft", "prefill", "throughput")
FEWEST_FOR_A_BAND = 8


def constants_document(validation: Validation) -> dict[str, Any]:
    """The general constants and every stack's, with the errors that held-out points showed.

    A stack's band is that of all calibrated stacks, or its own where its held-out errors are larger.
    """
    general = {
        "stack": "",
        "points": 0,
        "constants": as_mapping(validation.general),
        "bands": {kind: _band(validation.select("unseen", kind)) for kind in KINDS},
        "errors": _errors(validation, "unseen", None),
    }
    stacks = stack_entries(validation)
    return {"format": FORMAT, "source": "measured_points.csv", "stacks": [general, *stacks]}


def stack_entries(validation: Validation) -> list[dict[str, Any]]:
    """Every calibrated stack; figures that no held-out point judged have the general band."""
    shared = {kind: _band(validation.select("calibrated", kind)) for kind in KINDS}
    entries = []
    for stack, fitted in sorted(validation.stacks.items()):
        errors = _errors(validation, "calibrated", stack)
        entries.append(
            {
                "stack": stack,
                "points": validation.training_points(stack),
                "constants": as_mapping(fitted.vector),
                "reused_prompts": fitted.reused,
                "bands": {
                    kind: _stack_band(validation, stack, kind, shared[kind])
                    for kind in KINDS
                    if validation.select("calibrated", kind)
                },
                "errors": errors,
            }
        )
    return entries


def _stack_band(validation: Validation, stack: str, kind: str, shared: float) -> float:
    own = [p for p in validation.select("calibrated", kind) if p.stack == stack]
    return max(shared, _band(own)) if len(own) >= FEWEST_FOR_A_BAND else shared


def _band(predictions: Iterable[Prediction]) -> float:
    return round(half_width(prediction.log_error for prediction in predictions), 3)


def _errors(validation: Validation, split: Split, stack: str | None) -> dict[str, dict[str, float]]:
    errors = {}
    for kind in KINDS:
        chosen = [p for p in validation.select(split, kind) if stack in (None, p.stack)]
        if chosen:
            sizes = np.abs([prediction.error for prediction in chosen])
            errors[kind] = {
                "points": len(chosen),
                "median": round(float(np.median(sizes)), 4),
                "mean": round(float(sizes.mean()), 4),
            }
    return errors
