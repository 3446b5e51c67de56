"""How many threads can compute at once here."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CPU_DIRECTORY = Path("/sys/devices/system/cpu")
_CGROUP_CPU_MAX = Path("/sys/fs/cgroup/cpu.max")


def physical_cores(cpu_directory: Path = _CPU_DIRECTORY, cpu_max: Path = _CGROUP_CPU_MAX) -> int:
    """Physical cores that this process may run on, within its cgroup's quota; at least 1.

    Two hardware threads of one core share the units that the kernels saturate, so they count once.
    """
    allowed = os.sched_getaffinity(0)
    siblings = set()
    for cpu in allowed:
        path = cpu_directory / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        siblings.add(path.read_text().strip() if path.exists() else str(cpu))
    quota = _quota(cpu_max)
    return max(1, min(len(siblings), math.floor(quota) if quota else len(siblings)))


def _quota(cpu_max: Path) -> float | None:
    """Processors' worth of time that cgroup v2 grants, None where unlimited."""
    try:
        limit, period = cpu_max.read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
