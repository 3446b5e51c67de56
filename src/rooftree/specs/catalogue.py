"""The devices that Rooftree knows, and the user's own."""

from __future__ import annotations

import difflib
import re
import tomllib
from functools import cache
from importlib.resources import files
from pathlib import Path

from rooftree.errors import ConfigError
from rooftree.specs.device import DeviceSpec
from rooftree.specs.device_file import devices_from, read_devices

_VENDORS = re.compile(r"\b(nvidia|amd|intel|google|aws|amazon|instinct|geforce)\b")


@cache
def _built_in() -> tuple[DeviceSpec, ...]:
    text = files("rooftree.specs").joinpath("devices.toml").read_text(encoding="utf-8")
    return devices_from(tomllib.loads(text), "devices.toml")


THIS_MACHINE = "this-machine"
"""Alias of the device that ``rooftree probe`` measured."""


def known_devices(user_file: Path | None = None, machine_file: Path | None = None) -> tuple[DeviceSpec, ...]:
    """Every device of the catalogue, the machine that was probed, those of a user's TOML or JSON file.

    A later device replaces one of the same name before it.

    Args:
        machine_file: what ``rooftree probe`` wrote.

    Raises:
        ConfigError: a file is not readable or a field is missing or impossible; the message names it.
    """
    own = read_devices(user_file) if user_file is not None else ()
    if machine_file is not None:
        names = {normal_name(device.name) for device in own}
        probed = (device for device in _probed(machine_file) if normal_name(device.name) not in names)
        own = (*probed, *own)
    replaced = {normal_name(device.name) for device in own}
    return (*(device for device in _built_in() if normal_name(device.name) not in replaced), *own)


def _probed(machine_file: Path) -> tuple[DeviceSpec, ...]:
    try:
        return read_devices(machine_file)
    except ConfigError as error:
        raise ConfigError(f"{error}; remove it, or run rooftree probe again") from error


def find_device(name: str, user_file: Path | None = None, machine_file: Path | None = None) -> DeviceSpec:
    """A device by name or alias. Case, spaces, hyphens and the vendor's name do not matter.

    Raises:
        ConfigError: there is none; the message lists names like it. Or a file is wrong (``known_devices``).
    """
    devices = known_devices(user_file, machine_file)
    wanted = normal_name(name)
    # The user's come last and win.
    for device in reversed(devices):
        if wanted in map(normal_name, (device.name, *device.aliases)):
            return device
    if wanted == normal_name(THIS_MACHINE):
        raise ConfigError("this machine was not probed yet: run rooftree probe")
    by_key = {
        normal_name(spelling): device.name
        for device in devices
        for spelling in (device.name, *device.aliases)
    }
    close = [by_key[key] for key in difflib.get_close_matches(wanted, by_key, n=5, cutoff=0.5)]
    partial = [shown for key, shown in by_key.items() if wanted and wanted in key]
    like = list(dict.fromkeys([*partial, *close]))[:5]
    shown = f"like it: {', '.join(like)}" if like else f"known: {', '.join(sorted(d.name for d in devices))}"
    raise ConfigError(f"device {name!r} is not known; {shown} (rooftree devices lists all)")


def normal_name(name: str) -> str:
    """A name without case, spaces, punctuation and vendor: equal for all spellings of one device."""
    return re.sub(r"[^a-z0-9]", "", _VENDORS.sub("", name.lower().replace("_", " ").replace("-", " ")))
