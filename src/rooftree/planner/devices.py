"""Devices by any of the spellings that measurements and people use."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from rooftree.errors import ConfigError
from rooftree.specs.catalogue import find_device
from rooftree.specs.device import DeviceSpec
from rooftree.specs.device_file import devices_from


@lru_cache(maxsize=256)
def measured_device(name: str, user_file: Path | None = None, machine_file: Path | None = None) -> DeviceSpec:
    """A device of the catalogue, of the user's, or of those that only measured points are about.

    Raises:
        ConfigError: none of them; the message lists names like it.
    """
    try:
        return find_device(name, user_file, machine_file)
    except ConfigError:
        for device in _only_measured():
            if _key(name) in map(_key, (device.name, *device.aliases)):
                return device
        bare = re.sub(r"[ _-](?:server|sxm\d?|per gpu)$", "", name.strip(), flags=re.IGNORECASE)
        if bare != name.strip():
            return measured_device(bare, user_file, machine_file)
        raise


def priced(device: DeviceSpec, prices: Mapping[str, float]) -> DeviceSpec:
    """The device at the price that is given for its name, if any."""
    price = prices.get(device.name)
    return device if price is None else replace(device, price_per_hour=price)


@lru_cache(maxsize=1)
def _only_measured() -> tuple[DeviceSpec, ...]:
    text = files("rooftree.planner").joinpath("data", "measured_devices.toml").read_text(encoding="utf-8")
    return devices_from(tomllib.loads(text), "measured_devices.toml")


def _key(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())
