"""How many threads can compute at once here, and where."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from rooftree.engine.control_groups import group_folders, read_text


def physical_cores(root: Path = Path("/")) -> int:
    """Physical cores that this process may run on, within the quotas of its control groups; at least 1.

    Two hardware threads of one core share the units that the kernels saturate, so they count once. A fraction
    of a processor left over is not worth a thread: all threads meet after every operation, so one that the
    system holds back holds up all. ``root`` stands for ``/`` in tests.
    """
    return max(1, math.floor(min([len(_processors_by_core(root)), *_quotas(root)])))


def spread_processors(threads: int, root: Path = Path("/")) -> list[int]:
    """A processor for each thread: cores of their own while there are any, then their other threads."""
    by_core = _processors_by_core(root)
    order = [cpu for turn in zip_longest(*by_core) for cpu in turn if cpu is not None]
    return [order[i % len(order)] for i in range(threads)]


def _processors_by_core(root: Path) -> list[list[int]]:
    """The processors that this process may use, those of a core together, in order of their numbers."""
    cores: dict[str, list[int]] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        file = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        cores.setdefault(read_text(file).strip() or str(cpu), []).append(cpu)
    return list(cores.values())


def _quotas(root: Path) -> Iterator[float]:
    """Processors' worth of time that each group grants; unlimited ones and unreadable files are left out."""
    for version, folder in group_folders("cpu", root):
        if version == 2:
            words = read_text(folder / "cpu.max").split()
        else:
            words = [read_text(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
        if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]) > 0:
            yield int(words[0]) / int(words[1])
