"""Rooftree's engine on float weights against transformers in fp32 and bf16: prefill and decode.

All take turns in one run; figures are tokens per second, medians of the repeats, the ratio is to the faster.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import torch
import transformers

from comparisons import Comparison
from machine import Machine, describe, machine
from model_files import FLOATS, model_file
from rooftree.checkpoint.open import open_checkpoint
from rooftree_speed import RooftreeSpeed
from side_by_side import Case, Row, measure, numbers, speed_table, tell, wide_console
from transformers_peer import TransformersSpeed

_TARGET = 1.5


def compare(name: str, args: argparse.Namespace) -> list[Row]:
    """All cases on one directory, which both read."""
    folder = model_file(name)
    comparison = Comparison(name, name, name, args.prompt_tokens, args.context, args.batch)
    rows = []
    for case in comparison.cases(args.steps, open_checkpoint(str(folder)).spec.max_position_embeddings):
        row = replace(measure_case(case, folder, args), target=_TARGET)
        tell(name, row)
        rows.append(row)
    return rows


def measure_case(case: Case, folder: Path, args: argparse.Namespace) -> Row:
    """Ours and theirs in each precision, built for the case alone."""
    peers = {dtype: TransformersSpeed(folder, threads=args.threads, dtype=dtype) for dtype in args.dtype}
    ours = RooftreeSpeed(
        folder,
        threads=args.threads,
        sequences=case.batch,
        length=case.length,
        isa=args.isa,
        quantization=args.quantization,
    )
    return measure(case, ours, peers, args.repeats)


def show(results: Mapping[str, list[Row]], facts: Machine, args: argparse.Namespace) -> None:
    """A table for each directory."""
    console = wide_console()
    for name, rows in results.items():
        console.print(speed_table(f"{name}: tokens per second, {args.threads} threads", rows))
        console.print("theirs: " + ", ".join(f"{r.case} {r.peer}" for r in rows))
    console.print(describe(facts))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--file",
        action="append",
        help=f"a directory of safetensors, or {', '.join(FLOATS)} of SmolLM2; may be repeated; default: both",
    )
    parser.add_argument(
        "--dtype", action="append", help="theirs, by torch's name; default: float32, bfloat16"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--quantization", help="what we round the weights to, such as bf16, which theirs does in bfloat16"
    )
    parser.add_argument("--isa", help="our kernels; default: the best of this machine")
    parser.add_argument("--prompt-tokens", type=numbers, default=(512,), help="of the prefills")
    parser.add_argument("--context", type=numbers, default=(128,), help="tokens before the timed steps")
    parser.add_argument("--batch", type=numbers, default=(1, 8, 16, 32), help="sequences of the decodes")
    parser.add_argument("--steps", type=int, default=24, help="timed decode steps")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the tables")
    args = parser.parse_args()
    args.file = args.file or list(FLOATS)
    args.dtype = args.dtype or ["float32", "bfloat16"]
    return args


def main() -> None:
    args = parse_args()
    facts = machine()
    results = {name: compare(name, args) for name in args.file}
    if args.json:
        result = {
            "machine": facts,
            "threads": args.threads,
            "repeats": args.repeats,
            "peer": {"name": "transformers", "version": transformers.__version__, "torch": torch.__version__},
            "comparisons": [
                {"file": name, "rows": [asdict(row) for row in rows]} for name, rows in results.items()
            ],
        }
        print(json.dumps(result, indent=1))
    else:
        show(results, facts, args)


if __name__ == "__main__":
    main()
