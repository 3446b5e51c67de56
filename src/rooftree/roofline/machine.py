"""A machine as it was measured: its device, and what Rooftree's engine reaches of it, in one file.

The file is JSON. Its list ``device`` is that of a devices file, so the planner reads it as one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from rooftree.errors import ConfigError
from rooftree.roofline.efficiency import Efficiency, ProductRates
from rooftree.specs.device import DeviceSpec
from rooftree.specs.device_file import device_document, devices_from
from rooftree.specs.user_folder import user_folder

FORMAT = "rooftree-machine/1"
_AGAIN = "remove it, or run rooftree probe again"


@dataclass(frozen=True, slots=True)
class Machine:
    """A device and an engine's constants on it. ``origin``: where they are from, for people."""

    device: DeviceSpec
    efficiency: Efficiency
    origin: str


@dataclass(frozen=True, slots=True)
class Setting:
    """What a measurement holds for: another processor, thread count or instruction set needs its own."""

    cpu: str
    threads: int
    isa: str


@dataclass(frozen=True, slots=True)
class Quality:
    """How well the constants explain the steps that they were fitted to: relative errors of seconds."""

    steps: int
    median: float
    p90: float


@dataclass(frozen=True, slots=True)
class ProbedMachine:
    """What ``rooftree probe`` found. ``probed``: the day, as YYYY-MM-DD."""

    setting: Setting
    device: DeviceSpec
    efficiency: Efficiency
    quality: Quality
    probed: str

    @property
    def machine(self) -> Machine:
        """The same for those who only compute with it."""
        return Machine(self.device, self.efficiency, f"probed on {self.probed}")


def default_machine_file() -> Path:
    """Where ``rooftree probe`` writes, and where all others look."""
    return user_folder() / "this-machine.json"


def known_machine_file() -> Path | None:
    """The same, if there is one."""
    file = default_machine_file()
    return file if file.exists() else None


def write_machine(probed: ProbedMachine, file: Path) -> None:
    """Write the file, whole or not at all.

    Raises:
        ConfigError: it cannot be written.
    """
    text = json.dumps(machine_document(probed), indent=1) + "\n"
    with _writing(file) as part:
        part.write_text(text, encoding="utf-8")
        part.replace(file)


def check_writable(file: Path) -> None:
    """Make the file's folder and try to write there, before time is spent on measuring.

    Raises:
        ConfigError: it cannot be written.
    """
    with _writing(file) as part:
        part.touch()
        part.unlink()


@contextmanager
def _writing(file: Path) -> Iterator[Path]:
    """A name beside the file, in a folder that is there; what fails is told of the file."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        yield file.with_name(f"{file.name}.part")
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}; give another with --output") from error


def machine_document(probed: ProbedMachine) -> dict[str, Any]:
    """The file's content; ``machine_from`` reads it back."""
    return {
        "format": FORMAT,
        "probed": probed.probed,
        "setting": msgspec.to_builtins(probed.setting),
        "device": [device_document(probed.device)],
        "efficiency": msgspec.to_builtins(probed.efficiency),
        "quality": msgspec.to_builtins(probed.quality),
    }


def read_machine(file: Path) -> ProbedMachine:
    """Read a file that ``rooftree probe`` wrote.

    Raises:
        ConfigError: it cannot be read, is no such file, or a field is missing or impossible.
    """
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file}: is not valid JSON ({error}); {_AGAIN}") from error
    return machine_from(document, str(file))


def machine_from(document: object, source: str) -> ProbedMachine:
    """A parsed file. Raises as ``read_machine`` does."""
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        raise ConfigError(f"{source}: is not a {FORMAT} file; {_AGAIN}")
    devices = devices_from(document, source)
    try:
        probed = ProbedMachine(
            setting=msgspec.convert(document.get("setting"), Setting),
            device=devices[0],
            efficiency=msgspec.convert(document.get("efficiency"), Efficiency),
            quality=msgspec.convert(document.get("quality"), Quality),
            probed=msgspec.convert(document.get("probed"), str),
        )
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {str(error).replace('$.', '')}; {_AGAIN}") from None
    wrong = next(_impossible(probed.efficiency), None)
    if wrong is not None:
        raise ConfigError(f"{source}: efficiency.{wrong}; {_AGAIN}")
    return probed


def _impossible(efficiency: Efficiency) -> Iterator[str]:
    for field in fields(Efficiency):
        value = getattr(efficiency, field.name)
        if field.name == "products":
            yield from (
                f"products of {rates.format}: rows must rise from 1, each with a fraction above 0"
                for rates in value
                if not _is_possible(rates)
            )
        elif not (math.isfinite(value) and (value > 0 or (value == 0 and field.name.endswith("_seconds")))):
            yield f"{field.name} is {value}"


def _is_possible(rates: ProductRates) -> bool:
    rises = all(low < high for low, high in pairwise((0, *rates.rows)))
    rated = len(rates.rows) == len(rates.fractions) > 0
    return rises and rated and all(math.isfinite(value) and value > 0 for value in rates.fractions)
