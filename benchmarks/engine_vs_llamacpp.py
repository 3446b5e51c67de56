"""Rooftree's engine against llama.cpp, side by side in one run: prefill and decode, tokens per second.

The two take turns (A B, B A, ...), so drift of the machine meets both; figures are medians of the repeats.
``--table`` runs every comparison that has a target, or those named; without it, the files asked for.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median

import limits
from comparisons import TABLE, Comparison
from llamacpp_peer import LlamaCppSpeed
from machine import Machine, describe, machine
from model_files import FILE_HELP, model_file
from rooftree.checkpoint.open import open_checkpoint
from rooftree_speed import RooftreeSpeed
from side_by_side import Case, Row, measure, numbers, speed_table, tell, wide_console

_LONG_REPEATS = 3
"""Most repeats of a case whose context takes minutes to compute."""
_LONG_CONTEXT = 2048


def compare(comparison: Comparison, args: argparse.Namespace) -> list[Row]:
    """All cases of one pair of files."""
    files = model_file(comparison.ours), model_file(comparison.theirs)
    limit = open_checkpoint(str(files[0])).spec.max_position_embeddings
    rows = []
    for case in comparison.cases(args.steps, limit):
        row = replace(measure_case(case, files, args), target=comparison.target(case))
        tell(comparison.name, row)
        rows.append(row)
    return rows


def measure_case(case: Case, files: tuple[Path, Path], args: argparse.Namespace) -> Row:
    """Both engines, built for the case alone; at batch 1 with our share of the read bandwidth."""
    shape = {"threads": args.threads, "sequences": case.batch, "length": case.length}
    theirs = LlamaCppSpeed(files[1], **shape)
    ours = RooftreeSpeed(files[0], **shape, isa=args.isa)
    repeats = min(args.repeats, _LONG_REPEATS) if case.context >= _LONG_CONTEXT else args.repeats
    if case.steps == 0 or case.batch > 1:
        return measure(case, ours, {"llama.cpp": theirs}, repeats)
    reads: list[float] = []
    row = measure(
        case, ours, {"llama.cpp": theirs}, repeats, [lambda _: reads.append(limits.read_rate(args.threads))]
    )
    read = median(reads[1:])
    return replace(row, read_gb_per_s=read / 1e9, read_share=ours.step_weight_bytes * row.ours / read)


def comparisons(args: argparse.Namespace) -> list[Comparison]:
    """Those of the table that are asked for, or of the files; shapes that are asked for replace theirs."""
    if args.table is None:
        chosen = [Comparison(file, file, args.their_file or file) for file in args.file or ["smollm2"]]
    else:
        chosen = [TABLE[name] for name in args.table or TABLE]
    shapes = {"prompts": args.prompt_tokens, "contexts": args.context, "batches": args.batch}
    asked = {name: value for name, value in shapes.items() if value is not None}
    return [replace(comparison, **asked) for comparison in chosen]


def show(results: Mapping[str, list[Row]], facts: Machine, threads: int) -> None:
    """A table for each pair of files."""
    console = wide_console()
    for name, rows in results.items():
        console.print(speed_table(f"{name}: tokens per second, {threads} threads", rows))
    console.print(f"theirs: llama.cpp; {describe(facts)}")


def as_json(
    chosen: list[Comparison],
    results: Mapping[str, list[Row]],
    facts: Machine,
    args: argparse.Namespace,
) -> str:
    """Everything that one call measured."""
    import llama_cpp

    found = [
        {"name": c.name, "file": c.ours, "their_file": c.theirs, "rows": [asdict(r) for r in results[c.name]]}
        for c in chosen
    ]
    result = {
        "machine": facts,
        "threads": args.threads,
        "repeats": args.repeats,
        "peer": {"name": "llama-cpp-python", "version": llama_cpp.__version__},
        "comparisons": found,
    }
    return json.dumps(result, indent=1)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--file", action="append", help=f"may be repeated; {FILE_HELP}; default: smollm2")
    parser.add_argument("--their-file", help="llama.cpp's file, in the same words; default: the same as ours")
    parser.add_argument(
        "--table",
        nargs="*",
        choices=TABLE,
        metavar="NAME",
        help=f"comparisons with a target instead of files: {', '.join(TABLE)}; no name: all",
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", help="our kernels; default: the best of this machine")
    parser.add_argument("--prompt-tokens", type=numbers, help="of the prefills; default: 512, as 512,8192")
    parser.add_argument("--context", type=numbers, help="tokens before the timed steps; default: 128")
    parser.add_argument("--batch", type=numbers, help="sequences of the decodes; default: 1,8,16,32")
    parser.add_argument("--steps", type=int, default=24, help="timed decode steps")
    parser.add_argument(
        "--repeats", type=int, default=7, help=f"counted rounds; at most {_LONG_REPEATS} at long contexts"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the tables")
    args = parser.parse_args()
    if args.table is not None and (args.file or args.their_file):
        parser.error("--table names the files itself; give it, or --file and --their-file")
    return args


def main() -> None:
    args = parse_args()
    facts = machine()
    chosen = comparisons(args)
    results = {comparison.name: compare(comparison, args) for comparison in chosen}
    if args.json:
        print(as_json(chosen, results, facts, args))
    else:
        show(results, facts, args.threads)


if __name__ == "__main__":
    main()
