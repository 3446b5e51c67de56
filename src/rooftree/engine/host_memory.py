"""How much memory this process may still take: what the machine and the control groups leave it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


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


def _control_groups(root: Path) -> Iterator[int]:
    """Room under each limit that applies, of the process's own group and of all groups around it."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            for place in ("sys/fs/cgroup", "sys/fs/cgroup/unified"):
                yield from _rooms(root / place, path, "memory.max", "memory.current", "")
        elif "memory" in controllers.split(","):
            mount = root / "sys/fs/cgroup/memory"
            yield from _rooms(mount, path, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_")


def _rooms(mount: Path, path: str, limit_file: str, usage_file: str, prefix: str) -> Iterator[int]:
    # Inside a container the listed path may not exist under the mount; its root is then our own group.
    group = mount / path.lstrip("/")
    for folder in [group, *group.parents]:
        limit, usage = _text(folder / limit_file).strip(), _text(folder / usage_file).strip()
        if limit.isdigit() and usage.isdigit():
            cache = sum(
                value
                for name, value in _pairs(folder / "memory.stat")
                if name in (f"{prefix}inactive_file", f"{prefix}active_file")
            )
            yield int(limit) - int(usage) + min(cache, int(usage))
        if folder == mount:
            return


def _pairs(path: Path) -> Iterator[tuple[str, int]]:
    for line in _text(path).splitlines():
        words = line.split()
        if len(words) >= 2 and words[1].isdigit():
            yield words[0], int(words[1])


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
