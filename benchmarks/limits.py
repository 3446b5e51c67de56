"""The limits of this machine: memory read, fp32 multiply-add, int8 dot products; whatever binds, binds here.

The loops are those of ``rooftree probe``, in the native library; each is the best of several tries.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from machine import describe, machine
from rooftree import _native
from rooftree.engine.executors.cores import spread_processors
from rooftree.probe.limits import Limits, measure_limits

_READ_BYTES = 1 << 29


def measure(threads: int, isa: str | None = None) -> list[Limits]:
    """Of one thread, and of ``threads``. ``isa``: kernels whose instructions are used; None: the best."""
    kernels = isa or _native.supported_isas()[0]
    return [measure_limits(kernels, count, read_bytes=_READ_BYTES) for count in sorted({1, threads})]


def read_rate(threads: int) -> float:
    """Bytes of memory read per second at this moment: one look of some 50 ms."""
    return _native.read_rate(_native.supported_isas()[0], spread_processors(threads), _READ_BYTES, 2)


def show(limits: list[Limits]) -> None:
    """A table for people."""
    table = Table(title="limits of this machine")
    table.add_column("")
    for each in limits:
        table.add_column(f"{each.threads} thread{'s' * (each.threads > 1)}", justify="right")
    table.add_row("memory read, GB/s", *(f"{each.read / 1e9:.1f}" for each in limits))
    table.add_row("fp32 multiply-add, GFLOPS", *(f"{each.fp32 / 1e9:.0f}" for each in limits))
    for way in limits[0].int8:
        table.add_row(f"int8 {way}, GOPS", *(f"{each.int8[way] / 1e9:.0f}" for each in limits))
    table.add_row("ridge at int8, OP/byte", *(f"{each.best_int8 / each.read:.0f}" for each in limits))
    console = Console()
    console.print(table)
    first, last = limits[0], limits[-1]
    if last.threads > 1 and last.fp32 < 1.2 * first.fp32:
        console.print(
            f"{last.threads} threads compute no faster than one: they seem to share one physical core."
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", help="avx512, avx2 or portable; default: the best")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    args = parser.parse_args()
    facts = machine()
    limits = measure(args.threads, args.isa)
    if args.json:
        print(json.dumps({"machine": facts, "limits": [asdict(each) for each in limits]}, indent=1))
    else:
        show(limits)
        print(describe(facts))


if __name__ == "__main__":
    main()
