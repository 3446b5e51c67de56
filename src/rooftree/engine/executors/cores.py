"""How many threads can compute at once here."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

from rooftree.engine.control_groups import group_folders, read_text


def physical_cores(root: Path = Path("/")) -> int:
    """Physical cores that this process may run on, within the quotas of its control groups; at least 1.

    Two hardware threads of one core share the units that the kernels saturate, so they count once. A fraction
    of a processor left over is not worth a thread: all threads meet after every operation, so one that the
    system holds back holds up all. ``root`` stands for ``/`` in tests.
    """
    siblings = set()
    for cpu in os.sched_getaffinity(0):
        file = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        siblings.add(read_text(file).strip() or str(cpu))
    return max(1, math.floor(min([len(siblings), *_quotas(root)])))


def _quotas(root: Path) -> Iterator[float]:
    """Processors' worth of time that each group grants; unlimited ones and unreadable files are left out."""
    for version, folder in group_folders("cpu", root):
        if version == 2:
            words = read_text(folder / "cpu.max").split()
        else:
            words = [read_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
        if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]) > 0:
            yield int(words[0]) / int(words[1])
