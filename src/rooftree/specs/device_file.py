"""Devices as TOML or JSON: the catalogue's own format, and that of a user's file.

GB and tera are powers of ten, GiB and MiB of two. A key that is not listed here is refused.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, cast

import msgspec

from rooftree.errors import ConfigError
from rooftree.specs.device import DeviceSpec, LinkKind, LinkSpec
from rooftree.specs.device_audit import problems
from rooftree.specs.weight_format import Arithmetic

_GB, _TERA, _MIB, _GIB = 1e9, 1e12, 2**20, 2**30

Positive = Annotated[float, msgspec.Meta(gt=0, lt=1e12)]
Name = Annotated[str, msgspec.Meta(min_length=1)]


class Link(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """``bidirectional_gb_per_s`` left out: twice ``gb_per_s``, which is one direction."""

    kind: LinkKind
    gb_per_s: Positive
    bidirectional_gb_per_s: Positive | None = None
    max_devices: Annotated[int, msgspec.Meta(ge=2)] | None = None


class Measured(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Lowest and highest fraction reached by bf16 matrix products."""

    decode: tuple[float, float] | None = None
    prefill: tuple[float, float] | None = None


class Device(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """One entry of the list ``device``. ``sources``: by key of this entry; ``source``: for all others."""

    name: Name
    aliases: list[Name] = []
    memory_gib: Positive
    driver_memory_mib: Positive | None = None
    bandwidth_gb_per_s: Positive
    peak_tflops: Annotated[dict[Arithmetic, Positive], msgspec.Meta(min_length=1)]
    link: Link | None = None
    pcie_gb_per_s: Positive | None = None
    tdp_watts: Positive | None = None
    price_per_hour: Positive | None = None
    measured: Measured = msgspec.field(default_factory=Measured)
    source: str = ""
    sources: dict[str, str] = {}
    exceptions: dict[str, str] = {}
    certainty: str = "not stated"
    notes: str = ""


# Key of the file -> fields of DeviceSpec that come of it.
_FIELDS = {
    "memory_gib": ("memory_bytes",),
    "driver_memory_mib": ("driver_memory_bytes",),
    "bandwidth_gb_per_s": ("bandwidth",),
    "peak_tflops": ("peak_flops",),
    "link": ("link",),
    "pcie_gb_per_s": ("pcie_bytes_per_second",),
    "tdp_watts": ("tdp_watts",),
    "price_per_hour": ("price_per_hour",),
    "measured": ("decode_bandwidth_fraction", "prefill_flops_fraction"),
}


def read_devices(path: Path) -> tuple[DeviceSpec, ...]:
    """The devices of a user's file (JSON where it ends in .json, else TOML).

    Raises:
        ConfigError: the file cannot be read, or a device has a field that is missing, unknown or impossible.
            The message names the file, the device and the field.
    """
    is_json = path.suffix == ".json"
    try:
        text = path.read_text(encoding="utf-8")
        document = json.loads(text) if is_json else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is not valid {'JSON' if is_json else 'TOML'} ({error})") from error
    return devices_from(document, str(path))


def devices_from(document: object, source: str) -> tuple[DeviceSpec, ...]:
    """The devices of a parsed file. Raises as ``read_devices`` does."""
    entries = document.get("device") if isinstance(document, Mapping) else None
    if not isinstance(entries, list) or not entries:
        raise ConfigError(f"{source}: must hold a list 'device' with at least one entry")
    devices: dict[str, DeviceSpec] = {}
    for index, entry in enumerate(entries):
        device = _device(entry, source, index)
        if device.name in devices:
            raise ConfigError(f"{source}: device {device.name!r} appears twice")
        devices[device.name] = device
    return tuple(devices.values())


def device_document(device: DeviceSpec) -> dict[str, Any]:
    """A device under the keys of the file: ``devices_from({"device": [...]})`` reads it back."""
    entry = Device(
        name=device.name,
        aliases=list(device.aliases),
        memory_gib=device.memory_bytes / _GIB,
        driver_memory_mib=_scaled(device.driver_memory_bytes, 1 / _MIB),
        bandwidth_gb_per_s=device.bandwidth / _GB,
        peak_tflops={cast(Arithmetic, dtype): peak / _TERA for dtype, peak in device.peak_flops.items()},
        link=None if device.link is None else _link_entry(device.link),
        pcie_gb_per_s=_scaled(device.pcie_bytes_per_second, 1 / _GB),
        tdp_watts=device.tdp_watts,
        price_per_hour=device.price_per_hour,
        measured=Measured(decode=device.decode_bandwidth_fraction, prefill=device.prefill_flops_fraction),
        sources={key: device.sources[f] for key, (f, *_) in _FIELDS.items() if f in device.sources},
        exceptions=dict(device.exceptions),
        certainty=device.certainty,
        notes=device.notes,
    )
    document: dict[str, Any] = msgspec.to_builtins(entry)
    return document


def _device(entry: object, source: str, index: int) -> DeviceSpec:
    name = entry.get("name") if isinstance(entry, Mapping) else None
    at = f"{source}: device {index if name is None else repr(name)}"
    try:
        read = msgspec.convert(entry, Device)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{at}: {str(error).replace('$.', '')}") from None
    unknown = sorted(read.sources.keys() - _FIELDS.keys())
    if unknown:
        raise ConfigError(f"{at}: sources.{unknown[0]} is not a field; known are {', '.join(_FIELDS)}")
    device = DeviceSpec(
        name=read.name,
        aliases=tuple(read.aliases),
        memory_bytes=round(read.memory_gib * _GIB),
        driver_memory_bytes=None if read.driver_memory_mib is None else round(read.driver_memory_mib * _MIB),
        bandwidth=read.bandwidth_gb_per_s * _GB,
        peak_flops={dtype: peak * _TERA for dtype, peak in read.peak_tflops.items()},
        link=None if read.link is None else _link(read.link),
        pcie_bytes_per_second=_scaled(read.pcie_gb_per_s, _GB),
        tdp_watts=read.tdp_watts,
        price_per_hour=read.price_per_hour,
        decode_bandwidth_fraction=read.measured.decode,
        prefill_flops_fraction=read.measured.prefill,
        sources=_sources(read, source),
        exceptions=read.exceptions,
        certainty=read.certainty,
        notes=read.notes,
    )
    found = problems(device)
    if found:
        raise ConfigError(
            f"{at}: {found[0]}; if the device is so, say why under exceptions, by the first word"
        )
    return device


def _link(link: Link) -> LinkSpec:
    both = 2 * link.gb_per_s if link.bidirectional_gb_per_s is None else link.bidirectional_gb_per_s
    return LinkSpec(link.kind, link.gb_per_s * _GB, both * _GB, link.max_devices)


def _link_entry(link: LinkSpec) -> Link:
    return Link(
        kind=link.kind,
        gb_per_s=link.bytes_per_second / _GB,
        bidirectional_gb_per_s=link.bidirectional_bytes_per_second / _GB,
        max_devices=link.max_devices,
    )


def _sources(read: Device, source: str) -> dict[str, str]:
    """One for each field that has a figure: its own, or the device's, or the file."""
    stated = msgspec.to_builtins(read)
    return {
        name: read.sources.get(key, read.source or source)
        for key, names in _FIELDS.items()
        if stated.get(key)
        for name in names
    }


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
