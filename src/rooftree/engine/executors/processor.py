"""The processor's name and the machine's memory, as the system tells them."""

from __future__ import annotations

import os
import platform
from pathlib import Path

_CPU_INFO = Path("/proc/cpuinfo")


def processor_name(cpu_info: Path = _CPU_INFO) -> str:
    """Name with family and model where they are told, since cloud machines all bear the same name."""
    lines = cpu_info.read_text().splitlines() if cpu_info.exists() else []
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    name = facts.get("model name") or platform.processor() or platform.machine()
    if "cpu family" in facts:
        return f"{name} (family {facts['cpu family']}, model {facts.get('model', '?')})"
    return name


def memory_bytes() -> int:
    """Physical memory of the machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
