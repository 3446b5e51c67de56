"""What it takes to load a model: seconds from start to ready, memory at its highest, processor time at rest.

Starts ``rooftree serve`` on each file, its pages in the page cache, and looks at it from outside.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.table import Table

from machine import Machine, describe, machine
from model_files import FILE_HELP, model_file
from served import Served, serve
from side_by_side import wide_console

MODELS = ("smollm2", "llama-1gb", "llama-1b-F16", "llama-1b-F16 --quantization q4_0")
_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_PARTS = ("weights", "activations", "KV cache")
_READY = re.compile(r"is ready on \S+ after ([\d.]+) s \((.*)\)")
_CHUNK = 1 << 24


@dataclass(frozen=True)
class Loading:
    """Of one model.

    Attributes:
        file_bytes: its size on disk.
        seconds: from the start of the process to readiness, as start-up prints it, and its phases.
        parts_mib: packed weights, activations and KV cache, as start-up prints them.
        peak_mib: highest resident memory of the engine process, pages of the file that it maps included,
            which the system takes back when it needs them.
        own_peak_mib: the same without pages of files, looked at ten times a second.
        peak_ratio, own_peak_ratio: over the sum of the parts.
        rest_mib: resident memory of the engine process once loaded: of the KV cache only what was touched.
        base_mib: resident memory of a process that has imported the engine and loaded nothing, which every
            peak and ``rest_mib`` contain.
        api_peak_mib: highest resident memory of the process that talks to clients.
        idle_cpu: processor time of all processes at rest over the time, in shares of one processor.
    """

    model: str
    file_bytes: int
    seconds: float
    phases: dict[str, float] = field(repr=False)
    parts_mib: dict[str, float]
    peak_mib: float
    own_peak_mib: float
    peak_ratio: float
    own_peak_ratio: float
    rest_mib: float
    base_mib: float
    api_peak_mib: float
    idle_cpu: float


def measure(model: str, args: argparse.Namespace, log: Path) -> Loading:
    """Load one model; ``model`` may have flags of ``rooftree serve`` behind its name."""
    name, *flags = shlex.split(model)
    path = model_file(name)
    file_bytes = warm(path)
    watcher = _Watcher()
    limits = ["--max-model-len", "1024", "--kv-cache-memory", args.kv_cache_memory]
    with serve(str(path), [*limits, *flags, *shlex.split(args.serve_options)], log, watcher) as served:
        time.sleep(args.rest_seconds / 2)
        before = sum(state.cpu_seconds for state in served.processes())
        begin = time.monotonic()
        time.sleep(args.rest_seconds)
        states = served.processes()
        idle = (sum(state.cpu_seconds for state in states) - before) / (time.monotonic() - begin)
    seconds, phases, parts = startup(log.read_text())
    engine = next(state for state in states if state.role == "engine")
    peak = engine.peak_mib
    return Loading(
        model=model,
        file_bytes=file_bytes,
        seconds=seconds,
        phases=phases,
        parts_mib=parts,
        peak_mib=peak,
        own_peak_mib=watcher.peak_mib,
        peak_ratio=peak / sum(parts.values()),
        own_peak_ratio=watcher.peak_mib / sum(parts.values()),
        rest_mib=engine.rss_mib,
        base_mib=base_mib(),
        api_peak_mib=next(state.peak_mib for state in states if state.role == "API"),
        idle_cpu=idle,
    )


def base_mib() -> float:
    """Resident memory, pages of libraries included, of an interpreter with all that the engine imports."""
    modules = ("process", "builder", "executors.cpu")
    program = f"import {', '.join(f'rooftree.engine.{name}' for name in modules)}, rooftree.checkpoint.open\n"
    program += "print(open('/proc/self/status').read())"
    status = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, text=True
    ).stdout
    found = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    if found is None:
        raise SystemExit("the system does not tell the memory of a process")
    return int(found[1]) / 1024


class _Watcher:
    """Keeps the highest memory of the engine process that is no page of a file."""

    def __init__(self) -> None:
        self.peak_mib = 0.0

    def __call__(self, served: Served) -> None:
        try:
            states = served.processes()
        except FileNotFoundError:
            return  # a process that ended while it was looked at
        for state in states:
            if state.role == "engine":
                self.peak_mib = max(self.peak_mib, state.anonymous_mib)


def warm(path: Path) -> int:
    """Bring a file or a folder into the page cache; gives its bytes."""
    size = 0
    for file in [path] if path.is_file() else sorted(path.iterdir()):
        with file.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                size += len(chunk)
    return size


def startup(log: str) -> tuple[float, dict[str, float], dict[str, float]]:
    """Seconds, phases and MiB of each part, out of what start-up printed."""
    ready = _READY.search(log)
    if ready is None:
        raise SystemExit(f"start-up printed no report:\n{log}")
    phases = {name: float(spent) for name, spent in re.findall(r"(\w+) ([\d.]+) s", ready[2])}
    return float(ready[1]), phases, dict(_parts(log))


def _parts(log: str) -> Iterator[tuple[str, float]]:
    for name in _PARTS:
        row = re.search(rf"^ +{name} +([\d.]+) (\w+)", log, re.MULTILINE)
        if row is None:
            raise SystemExit(f"start-up's report has no row for {name}:\n{log}")
        yield name, float(row[1]) * _UNITS[row[2]] / _UNITS["MiB"]


def show(results: list[Loading], facts: Machine) -> None:
    """A table for people."""
    table = Table(title="loading, from a warm page cache")
    table.add_column("")
    for heading in (
        "GB",
        "seconds",
        "parts, MiB",
        "interpreter",
        "own peak",
        "ratio",
        "with file",
        "ratio",
        "at rest",
        "API process",
        "idle CPU",
    ):
        table.add_column(heading, justify="right")
    for r in results:
        cells = (f"{r.file_bytes / 1e9:.2f}", f"{r.seconds:.2f}", f"{sum(r.parts_mib.values()):.0f}")
        own = (f"{r.own_peak_mib:.0f}", f"{r.own_peak_ratio:.2f}")
        whole = (f"{r.peak_mib:.0f}", f"{r.peak_ratio:.2f}", f"{r.rest_mib:.0f}", f"{r.api_peak_mib:.0f}")
        table.add_row(r.model, *cells, f"{r.base_mib:.0f}", *own, *whole, f"{r.idle_cpu:.2%}")
    console = wide_console()
    console.print(table)
    console.print(describe(facts))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model",
        action="append",
        help=f"may be repeated, and have flags of rooftree serve behind it; default: {'; '.join(MODELS)}; "
        f"{FILE_HELP}",
    )
    parser.add_argument(
        "--kv-cache-memory", default="64MiB", help="small: most of it is not touched while loading"
    )
    parser.add_argument("--rest-seconds", type=float, default=10.0, help="watched at rest, after half of it")
    parser.add_argument("--serve-options", default="", help="more flags of rooftree serve, in one string")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    facts = machine()
    # So that the server ends with this process, however it is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "serve.log"
        results = [measure(model, args, log) for model in args.model or MODELS]
    if args.json:
        print(json.dumps({"machine": facts, "models": [asdict(r) for r in results]}, indent=1))
    else:
        show(results, facts)


if __name__ == "__main__":
    main()
