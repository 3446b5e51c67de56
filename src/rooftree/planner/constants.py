"""The fitted constants that come with Rooftree, the user's own, and what is known of their errors."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from rooftree.errors import ConfigError
from rooftree.planner.calibration.vector import NAMES
from rooftree.roofline.efficiency import Efficiency
from rooftree.roofline.machine import ProbedMachine, read_machine
from rooftree.specs.device import DeviceSpec
from rooftree.specs.user_folder import user_folder

FORMAT = "rooftree-step-model/1"
OWN_ENGINE = "rooftree"
ANY_DTYPE = "any"

PROBED_ERROR = 0.2
"""Relative error of nine steps in ten on models that a probe has not seen (docs/planner.md), at least."""
OWN_FRONTEND_SECONDS = 5e-3
"""From a request's arrival to the engine and back: HTTP, template and tokenizer of a short prompt."""


@dataclass(frozen=True, slots=True)
class StackConstants:
    """Constants of one stack, or of none in particular.

    Attributes:
        stack: device / engine version / weight dtype; empty: general.
        constants: by name (``calibration.vector``).
        points: measured points that they were fitted to.
        bands: kind of figure -> half width of the band, in logarithms, from held-out errors.
        origin: for people: ``calibrated on 10 points``, ``probed on ...`` or ``uncalibrated``.
        efficiency: of a probed machine; it stands instead of the constants for the step model.
    """

    stack: str
    constants: Mapping[str, float]
    points: int
    bands: Mapping[str, float]
    origin: str
    efficiency: Efficiency | None = None

    @property
    def is_own_engine(self) -> bool:
        """They are of Rooftree's engine on the machine that was probed."""
        return self.efficiency is not None

    def without_overhead(self) -> StackConstants:
        """The same with no fixed cost of a step and its layers."""
        none = {"layer_seconds": 0.0, "step_seconds": 0.0, "launch_seconds": 0.0}
        known = self.efficiency
        if known is not None:
            known = replace(known, layer_seconds=0.0, step_seconds=0.0, launch_seconds=0.0)
        return replace(self, constants={**self.constants, **none}, efficiency=known)

    def band(self, kind: str, seconds: float) -> tuple[float, float]:
        """Low and high of a figure of that kind."""
        factor = math.exp(self.bands[kind])
        return seconds / factor, seconds * factor


def user_constants_file() -> Path:
    """Where ``rooftree plan calibrate`` stores the user's stacks."""
    return user_folder() / "constants.json"


@lru_cache(maxsize=8)
def load_constants(
    user_file: Path | None = None, machine_file: Path | None = None
) -> tuple[StackConstants, ...]:
    """The general constants first, then every stack; the user's stacks replace ours of the same name.

    ``machine_file``: what ``rooftree probe`` wrote; it gives a stack for every weight dtype.

    Raises:
        ConfigError: a file is not readable or lacks a constant.
    """
    shipped = files("rooftree.planner").joinpath("data", "constants.json").read_text(encoding="utf-8")
    known = {entry.stack: entry for entry in parse_constants(json.loads(shipped), "constants.json")}
    if user_file is not None and user_file.exists():
        try:
            document = json.loads(user_file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{user_file}: {error}") from error
        own = parse_constants(document, str(user_file), known[""])
        known |= {entry.stack: entry for entry in own if entry.stack}
    if machine_file is not None:
        entry = probed_constants(read_machine(machine_file), known[""])
        known[entry.stack] = entry
    return tuple(known.values())


def probed_constants(probed: ProbedMachine, general: StackConstants) -> StackConstants:
    """The engine's constants on a probed machine, for any weight dtype: products were measured of each."""
    band = math.log1p(max(probed.quality.p90, PROBED_ERROR))
    return StackConstants(
        stack=f"{probed.device.name} / {OWN_ENGINE} / {ANY_DTYPE}",
        constants={**general.constants, "frontend_seconds": OWN_FRONTEND_SECONDS},
        points=probed.quality.steps,
        bands=dict.fromkeys(general.bands, band),
        origin=probed.machine.origin,
        efficiency=probed.efficiency,
    )


def parse_constants(
    document: Any, source: str, general: StackConstants | None = None
) -> list[StackConstants]:
    """Entries of a constants file; bands that it leaves out are those of ``general``.

    Raises:
        ConfigError: not such a file.
    """
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        raise ConfigError(f"{source}: not a {FORMAT} file")
    entries = []
    for entry in document.get("stacks", ()):
        constants = entry.get("constants", {})
        missing = [name for name in NAMES if name not in constants]
        if missing:
            raise ConfigError(f"{source}: stack {entry.get('stack')!r} has no {', '.join(missing)}")
        stack, points = str(entry.get("stack", "")), int(entry.get("points", 0))
        bands = {**(general.bands if general else {}), **entry.get("bands", {})}
        origin = f"calibrated on {points} points" if stack else "uncalibrated"
        entries.append(StackConstants(stack, dict(constants), points, bands, origin))
    return entries


def _dtype(name: str) -> str:
    """Spellings of measured points and ours, as one: fp8 per tensor, channel or block runs alike."""
    bare = name.replace("_", "-")
    return "fp8" if bare.startswith("fp8") else {"int4-wo": "awq", "fp16": "bf16"}.get(bare, bare)


def choose_constants(
    known: tuple[StackConstants, ...], device: DeviceSpec, engine: str | None, weight_dtype: str
) -> StackConstants:
    """The stack that fits a plan: same device, engine and weight dtype; else the general constants.

    Without an engine the general constants are used, since no measured engine was asked for; on a probed
    machine it is Rooftree's own.
    """
    if engine is not None:
        for entry in known:
            parts = entry.stack.split(" / ")
            same = len(parts) == 3 and parts[0] == device.name and _dtype(parts[2]) == _dtype(weight_dtype)
            if same and (parts[1] == engine or parts[1].split()[0] == engine):
                return entry
    if engine in (None, OWN_ENGINE):
        for entry in known:
            if entry.efficiency is not None and entry.stack.split(" / ")[0] == device.name:
                return entry
    return known[0]
