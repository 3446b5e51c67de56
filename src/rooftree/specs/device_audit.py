"""What no honest description of a device can say: sparse figures, mixed units, memory out of nothing."""

from __future__ import annotations

from collections.abc import Iterator

from rooftree.specs.device import DeviceSpec

# Rates of narrower dtypes against 16 bits: (low, high). Twice as many sparse operations show as four.
_RATIOS = {"fp8": (1.9, 2.1), "int8": (1.9, 2.1), "fp4": (3.8, 4.2)}
# FLOP per byte of 16-bit (else fp32) arithmetic; beyond any machine built, so a unit is wrong.
_RIDGE = (0.5, 2000.0)


def problems(device: DeviceSpec) -> list[str]:
    """Each rule that the device breaks without listing it in ``exceptions``, as ``rule: what is wrong``."""
    return [f"{rule}: {text}" for rule, text in _broken(device) if rule not in device.exceptions]


def _broken(device: DeviceSpec) -> Iterator[tuple[str, str]]:
    yield from _rates(device)
    yield from _memory(device)
    yield from _link(device)
    for name in ("decode_bandwidth_fraction", "prefill_flops_fraction"):
        measured = getattr(device, name)
        if measured is not None and not 0 < measured[0] <= measured[1] <= 1:
            yield (
                name,
                f"{measured[0]} to {measured[1]} is not a range of fractions; more than 1 is not possible",
            )


def _rates(device: DeviceSpec) -> Iterator[tuple[str, str]]:
    peaks = device.peak_flops
    base = peaks.get("bf16", peaks.get("fp16"))
    for dtype, (low, high) in _RATIOS.items():
        if base is not None and dtype in peaks and not low <= peaks[dtype] / base <= high:
            yield (
                dtype,
                f"dense {dtype} is {peaks[dtype] / base:.2f} times 16 bits, not about {round(low + 0.1)}",
            )
    known = base if base is not None else peaks.get("fp32")
    if known is not None and not _RIDGE[0] <= known / device.bandwidth <= _RIDGE[1]:
        yield "ridge", f"{known / device.bandwidth:.3g} FLOP per byte of bandwidth: one of the units is wrong"


def _memory(device: DeviceSpec) -> Iterator[tuple[str, str]]:
    reported = device.driver_memory_bytes
    # Labels are rounded, so the driver may report a little more.
    if reported is not None and not 0.85 <= reported / device.memory_bytes <= 1.01:
        yield (
            "driver_memory",
            f"the driver's {reported} bytes do not fit the advertised {device.memory_bytes}",
        )


def _link(device: DeviceSpec) -> Iterator[tuple[str, str]]:
    link = device.link
    if link is None:
        return
    if not 1.95 <= link.bidirectional_bytes_per_second / link.bytes_per_second <= 2.05:
        yield "link", "the bidirectional rate is not twice that of one direction"
    if link.bytes_per_second > device.bandwidth:
        yield "link", "is faster than the device's memory"
