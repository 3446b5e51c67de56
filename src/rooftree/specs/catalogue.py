"""The devices that Rooftree knows, and the user's own."""

from __future__ import annotations

from pathlib import Path

from rooftree.specs.device import DeviceSpec


def known_devices(user_file: Path | None = None) -> tuple[DeviceSpec, ...]:
    """Every device of the catalogue, then those of a user's TOML or JSON file (same name: the user's wins).

    Raises:
        ConfigError: the file is not readable or a field is missing or impossible; the message names it.
    """
    raise NotImplementedError


def find_device(name: str, user_file: Path | None = None) -> DeviceSpec:
    """A device by name or alias, case, spaces and hyphens aside.

    Raises:
        ConfigError: no device, or several, match; the message lists the nearest names.
    """
    raise NotImplementedError
