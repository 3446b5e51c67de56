"""A ``rooftree serve`` of our own: started, watched from outside, stopped."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

Metrics = dict[str, float]

_START_SECONDS = 300.0
_STOP_SECONDS = 30.0
_NO_MEMORY = "0 kB"  # of a process that has ended and is still listed
_SAMPLE = re.compile(r"^(rooftree:\w+)(?:\{([^}]*)\})? (\S+)$")


@dataclass(frozen=True)
class ProcessState:
    """One process of the server: resident memory, processor time, open files.

    Attributes:
        anonymous_mib: the part of ``rss_mib`` that is no page of a file.
        peak_mib: the highest ``rss_mib`` so far.
    """

    role: str
    rss_mib: float
    anonymous_mib: float
    peak_mib: float
    cpu_seconds: float
    files: int


class Served:
    """A running server."""

    def __init__(self, process: subprocess.Popen[bytes], url: str) -> None:
        self.url = url
        self._process = process

    @property
    def is_alive(self) -> bool:
        """Whether its process still runs."""
        return self._process.poll() is None

    def metrics(self) -> Metrics:
        """Rooftree's own metrics: ``name`` or ``name{label}`` of the labels that tell samples apart."""
        return parse_metrics(httpx.get(f"{self.url}/metrics", timeout=30).text)

    def processes(self) -> list[ProcessState]:
        """The API process and its children, from /proc."""
        pids = [self._process.pid, *_descendants(self._process.pid)]
        return [_state("API" if i == 0 else _role(pid), pid) for i, pid in enumerate(pids)]


@contextmanager
def serve(
    model: str, options: Sequence[str], log: Path, watch: Callable[[Served], None] = lambda served: None
) -> Iterator[Served]:
    """Run a server on a free port for as long as the context lasts; its log goes to a file.

    Args:
        watch: called ten times a second until the server is ready.

    Raises:
        SystemExit: it does not become ready.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [str(Path(sys.executable).with_name("rooftree")), "serve", model, "--port", str(port), *options]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
        served = Served(process, f"http://127.0.0.1:{port}")
        _wait_until_ready(served, shlex.join(command), log, watch)
        yield served
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()


def _wait_until_ready(served: Served, command: str, log: Path, watch: Callable[[Served], None]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while served.is_alive and time.monotonic() < deadline:
        watch(served)
        try:
            if httpx.get(f"{served.url}/health").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise SystemExit(f"{command} did not become ready:\n{log.read_text(errors='replace')}")


def parse_metrics(text: str) -> Metrics:
    """Samples of Prometheus' text format; buckets and the labels common to all are left out."""
    found: Metrics = {}
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match is None or match[1].endswith("_bucket"):
            continue
        labels = re.findall(r'(\w+)="([^"]*)"', match[2] or "")
        own = [value for name, value in labels if name not in ("model_name", "engine")]
        found[match[1] + (f"{{{','.join(own)}}}" if own else "")] = float(match[3])
    return found


def _descendants(pid: int) -> list[int]:
    children = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        children += [int(child) for child in (task / "children").read_text().split()]
    return [pid for child in children for pid in (child, *_descendants(child))]


def _role(pid: int) -> str:
    command = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    return "engine" if "engine" in command else Path(command.split("\0")[0]).name


def _state(role: str, pid: int) -> ProcessState:
    folder = Path(f"/proc/{pid}")
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    # The name, which may hold anything, ends with the last bracket; then come fields 3 and on.
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    return ProcessState(
        role,
        rss_mib=_mib(status.get("VmRSS", _NO_MEMORY)),
        anonymous_mib=_mib(status.get("RssAnon", _NO_MEMORY)),
        peak_mib=_mib(status.get("VmHWM", _NO_MEMORY)),
        cpu_seconds=(int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"),
        files=sum(1 for _ in (folder / "fd").iterdir()),
    )


def _mib(text: str) -> float:
    """``1234 kB`` of a status file."""
    return int(text.split()[0]) / 1024
