"""A device as plain numbers: what it can hold, move and compute. Every figure says where it is from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from rooftree.errors import ConfigError
from rooftree.specs.weight_format import Arithmetic

LinkKind = Literal[
    "nvlink", "nvlink-bridge", "infinity-fabric", "roce", "ici", "neuronlink", "xe-link", "other"
]
LINK_KINDS: tuple[str, ...] = get_args(LinkKind)
ARITHMETIC: tuple[str, ...] = get_args(Arithmetic)


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """The direct link between devices, beside PCIe.

    Attributes:
        kind: what it is; ``nvlink-bridge`` joins pairs only.
        bytes_per_second: one direction, per device, all its links together.
        bidirectional_bytes_per_second: both directions, as marketed.
        max_devices: how many devices reach each other at this rate; None: not stated.
    """

    kind: LinkKind
    bytes_per_second: float
    bidirectional_bytes_per_second: float
    max_devices: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """One accelerator (or CPU).

    Attributes:
        name, aliases: names by which it is found (see ``catalogue.find_device``).
        peak_flops: dense FLOP/s (int8: operations/s) by arithmetic dtype; one that the chip lacks is absent.
        bandwidth: bytes/s of device memory.
        memory_bytes: as advertised, in bytes (memory is sold in binary units).
        driver_memory_bytes: what the driver reports as total; None: not known.
        link: direct link to other devices; None: none, or none that is known.
        pcie_bytes_per_second: one direction; None: not known.
        tdp_watts, price_per_hour: None: not known. Prices are in the user's currency.
        decode_bandwidth_fraction, prefill_flops_fraction: (low, high) measured in bf16 matrix products,
            decode against ``bandwidth`` and prefill against ``peak_flops``; None: not measured.
        sources: field name -> where its figure is from; every field that has a figure has an entry.
        exceptions: rule of ``device_audit`` that the device breaks -> why.
        certainty: ``high``, ``medium`` or ``low``, and why, where not high.
        notes: traps.
    """

    name: str
    peak_flops: Mapping[str, float]
    bandwidth: float
    memory_bytes: int
    driver_memory_bytes: int | None = None
    link: LinkSpec | None = None
    pcie_bytes_per_second: float | None = None
    tdp_watts: float | None = None
    price_per_hour: float | None = None
    decode_bandwidth_fraction: tuple[float, float] | None = None
    prefill_flops_fraction: tuple[float, float] | None = None
    aliases: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    exceptions: Mapping[str, str] = field(default_factory=dict)
    certainty: str = "high"
    notes: str = ""

    @property
    def total_memory_bytes(self) -> int:
        """What the driver reports where known, else as advertised."""
        return self.driver_memory_bytes or self.memory_bytes

    def flops(self, dtype: str) -> float:
        """Dense peak for arithmetic in that dtype.

        Raises:
            ConfigError: the chip lacks it; the message lists those it has.
        """
        peak = self.peak_flops.get(dtype)
        if peak is None:
            raise ConfigError(f"{self.name} has no {dtype} arithmetic; it has {', '.join(self.peak_flops)}")
        return peak

    def ridge(self, dtype: str) -> float:
        """FLOP per byte at which arithmetic and bandwidth take the same time. Raises as ``flops`` does."""
        return self.flops(dtype) / self.bandwidth
