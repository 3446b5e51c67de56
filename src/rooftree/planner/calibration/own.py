"""Constants for the user's own server: from its step log, or from points measured through its API."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from rooftree.errors import ConfigError
from rooftree.planner.calibration.observation import StepSum, step_table
from rooftree.planner.calibration.points import read_points
from rooftree.planner.calibration.ship import stack_entries
from rooftree.planner.calibration.stack import fit_observations
from rooftree.planner.calibration.validate import half_width, validate
from rooftree.planner.calibration.vector import Vector, as_mapping, as_vector
from rooftree.planner.constants import FORMAT, load_constants
from rooftree.planner.deployment import PUBLISHED, sizing
from rooftree.planner.devices import measured_device
from rooftree.planner.models import resolve_model
from rooftree.planner.simulation import Segment
from rooftree.roofline.batch import Batch, Span, Window
from rooftree.roofline.parallel import Parallel

FEWEST_STEPS = 20
MOST_STEPS = 400
STEP_SIGMA = 0.05

Count = Annotated[float, Meta(ge=0)]


class LoggedStep(msgspec.Struct, frozen=True):
    """What the fit needs of a step as the engine logs it (``engine.stats.StepRecord``)."""

    num_requests: Count
    num_tokens: Count
    num_outputs: Count
    windows: tuple[int | None, ...]
    decode_context: tuple[Count, ...]
    prefill_pairs: tuple[Count, ...]
    prefill_reads: tuple[Count, ...]
    seconds: Annotated[float, Meta(gt=0)]

    def batch(self, windows: Sequence[Window]) -> Batch:
        """The step under a model's windows.

        Raises:
            ConfigError: it was not logged by such a model.
        """
        spans = dict(zip(self.windows, zip(*self._sums(), strict=True), strict=True))
        try:
            found = tuple(Span(*spans[window.size]) for window in windows)
        except KeyError as error:
            raise ConfigError(
                f"the step log is of a model with attention windows {list(self.windows)}, and the given one "
                f"has a window of {error}: give the model that was served"
            ) from None
        return Batch(self.num_tokens, self.num_outputs, self.num_requests, found)

    def _sums(self) -> tuple[tuple[float, ...], ...]:
        return self.decode_context, self.prefill_pairs, self.prefill_reads

    def __post_init__(self) -> None:
        if any(len(sums) != len(self.windows) for sums in self._sums()):
            raise ValueError(
                "decode_context, prefill_pairs and prefill_reads must have a number for each of windows"
            )


def calibrate_points(
    path: Path, devices_file: Path | None = None, machine_file: Path | None = None
) -> list[dict[str, Any]]:
    """Constants of every stack in a CSV with enough points, with their held-out errors.

    ``machine_file``: what ``rooftree probe`` wrote, for points of this machine.

    Raises:
        ConfigError: not readable, or no stack has six loads.
    """
    points, unusable = read_points(path)
    shipped = read_points()[0]

    def find(name: str) -> Any:
        return measured_device(name, devices_file, machine_file)

    result = validate(points, unusable, find, shipped)
    entries = stack_entries(result)
    if not entries:
        reasons = "; ".join(f"{item.id}: {item.reason}" for item in result.unusable[:3])
        raise ConfigError(
            f"{path}: no stack (device, engine, weight dtype) has six measured loads; about 20 are wanted, "
            f"for example 4 concurrencies of 5 shapes. {reasons}"
        )
    return entries


def calibrate_steps(
    steps: Path,
    model_name: str,
    device: str,
    devices_file: Path | None,
    engine: str,
    weight_dtype: str | None,
    kv_dtype: str,
    tensor: int,
    machine_file: Path | None = None,
) -> dict[str, Any]:
    """Constants from a step log. Errors are those of every fifth step, left out of the fit.

    ``machine_file``: what ``rooftree probe`` wrote, for a log of this machine.

    Raises:
        ConfigError: not such a log, or too short.
    """
    logged = read_steps(steps)
    spec = measured_device(device, devices_file, machine_file)
    model = resolve_model(model_name)
    dtype = weight_dtype or PUBLISHED
    sized = sizing(model, Parallel(tensor=tensor), dtype, kv_dtype)
    segments = [Segment(1, step.batch(sized.costs.windows), 0) for step in logged]
    table = step_table(segments, sized.costs, spec, sized.bits)
    observations = [
        StepSum(math.log(step.seconds), table.at(index), np.ones(1)) for index, step in enumerate(logged)
    ]
    general = as_vector(load_constants()[0].constants)
    kept = [o for index, o in enumerate(observations) if index % 5]
    held = observations[::5]
    fitted = fit_observations(kept, general, STEP_SIGMA)
    errors = [o.predict(fitted)[0] - o.log_measured for o in held]
    constants: Vector = fit_observations(observations, general, STEP_SIGMA)
    sizes = np.abs(np.exp(errors) - 1)
    name = model.architecture.scheme.name if weight_dtype is None else weight_dtype
    band = round(half_width(errors), 3)
    return {
        "stack": f"{spec.name} / {engine} / {name}",
        "points": len(logged),
        "constants": as_mapping(constants),
        "bands": {"tpot": band, "prefill": band, "throughput": band},
        "errors": {
            "step": {
                "points": len(held),
                "median": round(float(np.median(sizes)), 4),
                "mean": round(float(sizes.mean()), 4),
            }
        },
    }


def read_steps(path: Path) -> list[LoggedStep]:
    """A step log, one JSON object per line; of a long one, steps evenly over its length.

    Raises:
        ConfigError: not such a log, or fewer than 20 steps.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    logged = [step for step in _parse(content, path) if step.num_tokens]
    if len(logged) < FEWEST_STEPS:
        raise ConfigError(
            f"{path}: {len(logged)} steps; at least {FEWEST_STEPS} of different sizes are needed"
        )
    stride = max(1, len(logged) // MOST_STEPS)
    return logged[::stride]


def _parse(content: bytes, path: Path) -> list[LoggedStep]:
    """The steps of a log; a last line that was cut short when its writer ended is left out."""
    lines = content.splitlines()
    decoder = msgspec.json.Decoder(LoggedStep)
    steps = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            steps.append(decoder.decode(line))
        except msgspec.DecodeError as error:
            if number == len(lines) and not content.endswith(b"\n"):
                break
            raise ConfigError(f"{path}, line {number}: {error}") from None
    return steps


def store(entries: Sequence[Mapping[str, Any]], file: Path) -> None:
    """Add stacks to a constants file; those of the same name are replaced.

    Raises:
        ConfigError: the file is there and not a constants file, or cannot be written.
    """
    try:
        document = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"format": FORMAT}
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ConfigError(f"{file}: not a {FORMAT} file; give another with --write")
        new = {entry["stack"] for entry in entries}
        kept = [entry for entry in document.get("stacks", []) if entry.get("stack") not in new]
        document["stacks"] = [*kept, *entries]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: {error}") from error
    load_constants.cache_clear()
