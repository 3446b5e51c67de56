"""How much of a mapped file counts as this process' memory."""

from __future__ import annotations

from pathlib import Path

import pytest

on_linux = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="the system does not tell")


def resident(path: Path) -> int:
    """Bytes of a mapped file, or of all in a folder, that count as this process' memory."""
    total = 0
    mapping = ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        key, *words = line.split()
        if not key.endswith(":"):
            mapping = line
        elif key == "Rss:" and str(path) in mapping:
            total += 1024 * int(words[0])
    return total
