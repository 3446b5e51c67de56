"""The control groups (cgroups) that this process lives in, of version 1 or 2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal


def group_folders(controller: str, root: Path) -> Iterator[tuple[Literal[1, 2], Path]]:
    """Where a controller's limits stand: version and folder of our own group and of all groups around it.

    Args:
        controller: ``cpu`` or ``memory``; version 2 has all in one tree.
        root: stands for ``/`` in tests.
    """
    groups = root / "sys/fs/cgroup"
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            for mount in (groups, groups / "unified"):
                yield from ((2, folder) for folder in _upwards(mount, path))
        elif controller in controllers.split(","):
            yield from ((1, folder) for folder in _upwards(groups / controller, path))


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    # Inside a container the listed path may not exist under the mount; its root is then our own group.
    folder = mount / path.lstrip("/")
    while folder != mount:
        yield folder
        folder = folder.parent
    yield mount


def read_text(path: Path) -> str:
    """What a small file holds; nothing where it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
