"""How far Rooftree's and its peers' next-token distributions lie from the fp32 model of the same weights.

Every engine reads the same windows of real text; at each position its distribution is held against that of
the dequantised weights computed in plain float32 (``fp32_model``): KL(fp32 || engine), agreement of the most
likely token, perplexity.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Protocol, get_args

from rich.console import Console
from rich.table import Table

from divergence import Divergence, Summary, log_softmax
from fp32_model import Fp32Model
from machine import Machine, describe, machine
from model_files import FILE_HELP, model_file
from rooftree import _native
from rooftree.checkpoint.base import Checkpoint
from rooftree.checkpoint.open import open_checkpoint
from rooftree.engine.config import KVCacheDType
from rooftree.kernels.ops import Floats
from rooftree.text.tokenizer import Tokenizer
from rooftree_logits import RooftreeLogits

TEXT = Path(__file__).with_name("data") / "moby_dick_87.txt"


class Engine(Protocol):
    """Whatever gives logits."""

    def logits(self, tokens: Sequence[int]) -> Floats:
        """(positions, vocab) after each token of one window."""


class LlamaCppLogits:
    """llama.cpp, one window at a time."""

    def __init__(self, path: Path, *, length: int, threads: int) -> None:
        from llamacpp_peer import LlamaCpp

        self._llama = LlamaCpp(path, threads=threads, sequences=1, length=length)

    def logits(self, tokens: Sequence[int]) -> Floats:
        """A view, good until the next call."""
        self._llama.clear()
        return self._llama.prefill(tokens, all_logits=True)


def engines(args: argparse.Namespace, checkpoint: Checkpoint) -> dict[str, Engine]:
    """What is measured, by name: our kernels and KV cache formats, llama.cpp with fp16, transformers."""
    found: dict[str, Engine] = {}
    for isa in args.isa or _native.supported_isas():
        for dtype in args.kv_cache_dtype:
            found[f"{isa}, {dtype}"] = RooftreeLogits(
                checkpoint, length=args.window, threads=args.threads, isa=isa, kv_cache_dtype=dtype
            )
    if not args.no_llamacpp:
        found["llama.cpp, fp16"] = LlamaCppLogits(args.file, length=args.window, threads=args.threads)
    if args.transformers:
        from transformers_peer import TransformersLogits

        name = f"transformers, {args.transformers}"
        found[name] = TransformersLogits(args.file, threads=args.threads, dtype=args.transformers)
    return found


def windows(tokens: list[int], length: int, positions: int | None) -> list[list[int]]:
    """The text cut into whole windows, at least ``positions`` tokens of it (None: all)."""
    starts = range(0, len(tokens) - length + 1, length)
    cut = [tokens[start : start + length] for start in starts]
    return cut if positions is None else cut[: -(-positions // length)]


def measure(args: argparse.Namespace) -> list[Summary]:
    """Each engine over all windows, window by window so that one set of logits is held at a time."""
    checkpoint = open_checkpoint(str(args.file))
    tokens = Tokenizer.from_assets(checkpoint.text, checkpoint.spec.vocab_size).encode(
        args.text.read_text(encoding="utf-8"), add_special_tokens=False
    )
    texts = windows(tokens, args.window, args.positions)
    if not texts:
        raise SystemExit(f"{args.text}: {len(tokens)} tokens are less than one window of {args.window}")
    truth_model = Fp32Model(checkpoint, length=args.window)
    measured = [(Divergence(name), engine) for name, engine in engines(args, checkpoint).items()]
    exact = Divergence("fp32")
    for i, window in enumerate(texts):
        print(f"window {i + 1} of {len(texts)}", end="\r", file=sys.stderr, flush=True)
        logits = truth_model.logits(window)
        truth = log_softmax(logits)
        exact.add(window, truth, logits)
        for divergence, engine in measured:
            divergence.add(window, truth, engine.logits(window))
    return [exact.summary(), *(divergence.summary() for divergence, _ in measured)]


def show(rows: list[Summary], facts: Machine, args: argparse.Namespace) -> None:
    """A table for people; divergences in thousandths of a nat."""
    title = f"{args.file.name}, {rows[0].positions} positions, KL in 1e-3 nats"
    table = Table(title=title, min_width=78)
    table.add_column("", no_wrap=True)
    for heading in ("mean KL", "median", "p99", "max", "top-1", "ppl"):
        table.add_column(heading, justify="right", no_wrap=True)
    for r in rows:
        mean = f"{1000 * r.mean_kl:.2f} ± {1000 * r.standard_error:.2f}"
        others = [f"{1000 * value:.2f}" for value in (r.median_kl, r.p99_kl, r.max_kl)]
        table.add_row(r.name, mean, *others, f"{100 * r.top1_agreement:.2f} %", f"{r.perplexity:.2f}")
    console = Console()
    console.print(table)
    console.print(describe(facts))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--file", default="smollm2", help=FILE_HELP)
    parser.add_argument("--text", type=Path, default=TEXT, help="UTF-8; default: a chapter of Moby-Dick")
    parser.add_argument("--window", type=int, default=512, help="tokens that one context holds")
    parser.add_argument("--positions", type=int, help="stop after as many; default: the whole text")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--isa", action="append", help="kernels; may be repeated; default: all of this machine"
    )
    parser.add_argument(
        "--kv-cache-dtype", action="append", choices=get_args(KVCacheDType), help="default: fp16"
    )
    parser.add_argument("--no-llamacpp", action="store_true", help="llama.cpp reads GGUF files only")
    parser.add_argument(
        "--transformers", metavar="DTYPE", help="measure transformers too, such as bfloat16, on a folder"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    args = parser.parse_args()
    args.file = model_file(args.file)
    args.kv_cache_dtype = args.kv_cache_dtype or ["fp16"]
    return args


def main() -> None:
    args = parse_args()
    facts = machine()
    rows = measure(args)
    if args.json:
        result = {"machine": facts, "file": str(args.file), "text": args.text.name, "window": args.window}
        print(json.dumps(result | {"rows": [asdict(r) for r in rows]}, indent=1))
    else:
        show(rows, facts, args)


if __name__ == "__main__":
    main()
