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
from time import perf_counter

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

import limits
from machine import describe, machine
from rooftree import _native
from rooftree.checkpoint.base import DType, Tensor
from rooftree.checkpoint.formats import quantize
from rooftree.kernels.cpu import CpuRecorder

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
    of_peak: float


class Chain:
    """``count`` matrices (n, k) of a format, each times the same rows, added up."""

    def __init__(
        self, dtype: DType, n: int, k: int, count: int, *, rows: int, threads: int, isa: str
    ) -> None:
        rng = np.random.default_rng(0)
        recorder = CpuRecorder(_native.ThreadPool(threads), heads=1, kv_heads=1, head_dim=8)

        def matrix(name: str, kind: DType, *shape: int) -> Tensor:
            values = rng.standard_normal(shape, np.float32)
            return Tensor(name, shape, kind, quantize(kind, values), name)

        x = recorder.embed(recorder.matrix(matrix("x", "F32", rows, k)))
        total = recorder.embed(recorder.matrix(matrix("y", "F32", rows, n)))
        for i in range(count):
            weight = recorder.matrix(matrix(f"w{i}", dtype, n, k))
            total = recorder.linear_add(total, x, weight, None)
        recorder.sample(recorder.select_sampled(total))
        angles = np.zeros((rows, 4), np.float32)
        self._program, _ = recorder.build(isa, rows, 1, angles, angles)
        self._program.set_kv_cache(_native.KvCache(1, 1, 8, 16, 0, 1))
        self._request = np.array([[0, 0, rows, 0, 0]], np.int32)
        self._tokens = np.arange(rows, dtype=np.int32).reshape(1, rows)
        self._blocks = np.zeros((1, -(-rows // 16)), np.int32)

    def seconds(self) -> float:
        """One pass through all matrices."""
        none: npt.NDArray[np.int32] = np.zeros(0, np.int32)
        no_bytes, no_floats = np.zeros(0, np.uint8), np.zeros(0, np.float32)
        begin = perf_counter()
        self._program.run(
            self._request, self._tokens, self._blocks, no_bytes, none, no_floats, none, no_bytes
        )
        return perf_counter() - begin


def measure(dtype: DType, shape: str, args: argparse.Namespace, peak: float) -> Product:
    """One format and shape, n x k."""
    n, k = (int(part) for part in shape.split("x"))
    count = max(1, _WEIGHTS // (n * k))
    chain, longer = (
        Chain(dtype, n, k, times * count, rows=args.rows, threads=args.threads, isa=args.isa)
        for times in (1, 2)
    )
    operations = 2e-9 * count * n * k * args.rows
    pairs = [(chain.seconds(), longer.seconds()) for _ in range(args.repeats + 1)][1:]
    seconds, best = (f(pair[1] for pair in pairs) - f(pair[0] for pair in pairs) for f in (median, min))
    return Product(
        dtype, shape, args.rows, operations / seconds, operations / best, operations / seconds / peak
    )


def show(products: list[Product], peak: float) -> None:
    """A table for people."""
    table = Table(title=f"int8 products; a loop in registers reaches {peak:.0f} GOPS")
    for heading in ("format", "n x k", "rows", "GOPS", "best", "of the limit"):
        table.add_column(heading, justify="left" if heading == "format" else "right")
    for p in products:
        rates = (f"{p.gops:.0f}", f"{p.best_gops:.0f}", f"{p.of_peak:.0%}")
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
    peak = limits.measure(args.threads)[-1].int8
    products = [
        measure(dtype, shape, args, peak)
        for dtype in args.format or ["Q4_0", "Q4_1"]
        for shape in args.shape or SHAPES
    ]
    if args.json:
        result = {"machine": facts, "threads": args.threads, "isa": args.isa, "int8_gops": peak}
        print(json.dumps(result | {"products": [asdict(p) for p in products]}, indent=1))
    else:
        show(products, peak)
        print(describe(facts))


if __name__ == "__main__":
    main()
