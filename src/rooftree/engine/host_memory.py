"""How much memory this process may still take: what the machine and the control groups leave it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rooftree.engine.control_groups import group_folders, read_text


def available_bytes(root: Path = Path("/")) -> int | None:
    """Bytes that can be taken without swapping or meeting a limit; None where the system does not say.

    Counts page cache as free, since the kernel gives it up on demand. ``root`` stands for ``/`` in tests.
    """
    limits = [*_machine(root), *_control_groups(root)]
    return max(0, min(limits)) if limits else None


def _machine(root: Path) -> Iterator[int]:
    for name, value in _pairs(root / "proc/meminfo"):
        if name == "MemAvailable:":
            yield value * 1024


# By version: files of the limit and of what is used, prefix of the counters that include inner groups.
_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    2: ("memory.max", "memory.current", ""),
}


def _control_groups(root: Path) -> Iterator[int]:
    """Room under each limit that applies, of the process's own group and of all groups around it."""
    for version, folder in group_folders("memory", root):
        limit_file, usage_file, prefix = _FILES[version]
        limit, usage = read_text(folder / limit_file).strip(), read_text(folder / usage_file).strip()
        if limit.isdigit() and usage.isdigit():
            cache = sum(
                value
                for name, value in _pairs(folder / "memory.stat")
                if name in (f"{prefix}inactive_file", f"{prefix}active_file")
            )
            yield int(limit) - int(usage) + min(cache, int(usage))


def _pairs(path: Path) -> Iterator[tuple[str, int]]:
    for line in read_text(path).splitlines():
        words = line.split()
        if len(words) >= 2 and words[1].isdigit():
            yield words[0], int(words[1])
