"""The limits of this machine: memory read, fp32 multiply-add, int8 dot products; whatever binds, binds here.

Builds ``limits.cpp`` with the system's C++ compiler ($CXX, or c++) for this processor and runs it.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from machine import describe, machine

SOURCE = Path(__file__).with_suffix(".cpp")


@dataclass(frozen=True)
class Limits:
    """What that many threads reach together, best of several tries. A multiply-add is 2 operations.

    Attributes:
        read_gb_per_s: from memory far larger than the caches.
        fp32_gflops, int8_gops: operands in registers; int8 by way of computing.
    """

    threads: int
    read_gb_per_s: float
    fp32_gflops: float
    int8_gops: dict[str, float]

    @property
    def int8(self) -> float:
        """GOPS of the best way; 0 where none was tried."""
        return max(self.int8_gops.values(), default=0.0)


def measure(threads: int) -> list[Limits]:
    """Of one thread, and of ``threads``. Compiles the program and runs it; takes some seconds.

    Raises:
        SystemExit: there is no compiler, or it fails.
    """
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "limits"
        flags = ["-std=c++17", "-O3", "-march=native", "-ffp-contract=fast", "-Wno-psabi", "-pthread"]
        built = subprocess.run([*compiler, *flags, str(SOURCE), "-o", str(program)], check=False)
        if built.returncode != 0:
            raise SystemExit(f"{shlex.join(compiler)} could not build {SOURCE.name}")
        return [_run(program, count) for count in sorted({1, threads})]


def _run(program: Path, threads: int) -> Limits:
    output = subprocess.run([program, str(threads)], check=True, capture_output=True, text=True).stdout
    return Limits(**json.loads(output))


def show(limits: list[Limits]) -> None:
    """A table for people."""
    table = Table(title="limits of this machine")
    table.add_column("")
    for each in limits:
        table.add_column(f"{each.threads} thread{'s' * (each.threads > 1)}", justify="right")
    table.add_row("memory read, GB/s", *(f"{each.read_gb_per_s:.1f}" for each in limits))
    table.add_row("fp32 multiply-add, GFLOPS", *(f"{each.fp32_gflops:.0f}" for each in limits))
    for way in limits[0].int8_gops:
        table.add_row(f"int8 {way}, GOPS", *(f"{each.int8_gops[way]:.0f}" for each in limits))
    table.add_row("ridge at int8, OP/byte", *(f"{each.int8 / each.read_gb_per_s:.0f}" for each in limits))
    console = Console()
    console.print(table)
    first, last = limits[0], limits[-1]
    if last.threads > 1 and last.fp32_gflops < 1.2 * first.fp32_gflops:
        console.print(
            f"{last.threads} threads compute no faster than one: they seem to share one physical core."
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    args = parser.parse_args()
    facts = machine()
    limits = measure(args.threads)
    if args.json:
        print(json.dumps({"machine": facts, "limits": [asdict(each) for each in limits]}, indent=1))
    else:
        show(limits)
        print(describe(facts))


if __name__ == "__main__":
    main()
