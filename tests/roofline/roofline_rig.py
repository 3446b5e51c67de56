"""Models and devices of the worked answers, written from their published dimensions."""

from __future__ import annotations

from rooftree.planner.models import published_model
from rooftree.specs.architecture import Architecture
from rooftree.specs.catalogue import find_device
from rooftree.specs.device import DeviceSpec

GIB = 2**30


def model(name: str) -> Architecture:
    return published_model(name).architecture


def device(name: str) -> DeviceSpec:
    return find_device(name)


def card(gib: int, bandwidth: float = 1e12) -> DeviceSpec:
    """A card of so much memory, all of it reported."""
    return DeviceSpec(
        f"{gib} GB card", {"bf16": 1e14, "fp16": 1e14}, bandwidth, gib * GIB, pcie_bytes_per_second=32e9
    )
