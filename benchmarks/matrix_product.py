"""The product of packed weights with many rows of activations: int8 operations per second beside the limit.

The native kernels run a chain of products of one shape, as they run in a step: activations are quantised
once, and every matrix adds to the same output. The time of a product is that by which a chain twice as long
takes longer: what fills and rounds the inputs and samples at the end is not in it. What a register-only loop
reaches comes from ``limits``.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from statistics import median

from rich.console import Console
from rich.table import Table

import limits
from machine import describe, machine
from rooftree import _native
from rooftree.checkpoint.base import DType
from rooftree.probe.products import ProductChain

SHAPES = ("1536x576", "576x1536", "8192x2048", "2048x8192")
_WEIGHTS = 1 << 24
"""About as many weights in a chain, so that they do not all stay in the caches next to the core."""


@dataclass(frozen=True)
class Product:
    """Median and best of the repeats. A multiply-add is 2 operations."""

    format: str
    shape: str
    rows: int
    gops: float
    best_gops: float
    peak_gops: float


def measure(dtype: DType, shape: str, args: argparse.Namespace) -> Product:
    """One format and shape, n x k, and the limit as it is reached beside it."""
    n, k = (int(part) for part in shape.split("x"))
    count = max(1, _WEIGHTS // (n * k))
    chain, longer = (
        ProductChain(dtype, n, k, count=times * count, max_rows=args.rows, threads=args.threads, isa=args.isa)
        for times in (1, 2)
    )
    operations = 2e-9 * count * n * k * args.rows
    peak = limits.measure(args.threads, args.isa)[-1].best_int8 / 1e9
    pairs = [(chain.seconds(args.rows), longer.seconds(args.rows)) for _ in range(args.repeats + 1)][1:]
    seconds, best = (f(pair[1] for pair in pairs) - f(pair[0] for pair in pairs) for f in (median, min))
    return Product(dtype, shape, args.rows, operations / seconds, operations / best, peak)


def show(products: list[Product], peak: float) -> None:
    """A table for people."""
    table = Table(title=f"int8 products; a loop in registers reaches {peak:.0f} GOPS")
    for heading in ("format", "n x k", "rows", "GOPS", "best", "of the limit"):
        table.add_column(heading, justify="left" if heading == "format" else "right")
    for p in products:
        rates = (f"{p.gops:.0f}", f"{p.best_gops:.0f}", f"{p.gops / peak:.0%}")
        table.add_row(p.format, p.shape, str(p.rows), *rates)
    Console().print(table)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--format", action="append", help="of the weights; default: Q4_0 and Q4_1")
    parser.add_argument("--shape", action="append", help=f"n x k; default: {', '.join(SHAPES)}")
    parser.add_argument("--rows", type=int, default=512, help="tokens of a step")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", default=_native.supported_isas()[0], help="kernels")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    facts = machine()
    products = [
        measure(dtype, shape, args)
        for dtype in args.format or ["Q4_0", "Q4_1"]
        for shape in args.shape or SHAPES
    ]
    # Nothing makes a machine faster than it is: the highest of the limits is the nearest to it.
    peak = max(product.peak_gops for product in products)
    if args.json:
        result = {"machine": facts, "threads": args.threads, "isa": args.isa, "int8_gops": peak}
        print(json.dumps(result | {"products": [asdict(p) for p in products]}, indent=1))
    else:
        show(products, peak)
        print(describe(facts))


if __name__ == "__main__":
    main()
