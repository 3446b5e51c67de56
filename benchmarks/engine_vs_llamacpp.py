"""Rooftree's engine against llama.cpp, side by side in one run: prefill and decode, tokens per second.

The two take turns (A B, B A, ...), so drift of the machine meets both; figures are medians of the repeats.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Protocol

import numpy as np
from rich.console import Console
from rich.table import Table

from llamacpp_peer import LlamaCppSpeed
from machine import Machine, describe, machine
from model_files import FILE_HELP, model_file
from rooftree_speed import RooftreeSpeed

# Idle threads of one engine may spin for a moment; the other begins after that.
_REST_SECONDS = 0.05


class Engine(Protocol):
    """What is timed; see ``RooftreeSpeed``."""

    def prefill_seconds(self, prompt: Sequence[int]) -> float: ...

    def decode_seconds(self, prompts: Sequence[Sequence[int]], steps: int) -> float: ...

    def close(self) -> None: ...


def make_prompts(batch: int, length: int, seed: int) -> list[list[int]]:
    """Different prompts of the same length; which tokens they hold does not matter to the time."""
    prompts: list[list[int]] = np.random.default_rng(seed).integers(1000, 30_000, (batch, length)).tolist()
    return prompts


@dataclass(frozen=True)
class Case:
    """``batch`` prompts of ``context`` tokens, then ``steps`` timed steps; 0 steps: one prefill is timed."""

    name: str
    batch: int
    context: int
    steps: int

    @property
    def tokens(self) -> int:
        """Tokens that the timed part computes."""
        return self.batch * self.steps or self.context

    def seconds(self, engine: Engine, repeat: int) -> float:
        """One timing. A prefill's prompt is new each time, so no cache knows it; a decode's may be known."""
        if self.steps == 0:
            return engine.prefill_seconds(make_prompts(1, self.context, seed=repeat)[0])
        return engine.decode_seconds(make_prompts(self.batch, self.context, seed=self.batch), self.steps)


@dataclass
class Timings:
    """Of one case: seconds of each round, the first a warm-up, and what went to Python and to the argmax."""

    case: Case
    ours: list[float] = field(default_factory=list)
    theirs: list[float] = field(default_factory=list)
    python_share: list[float] = field(default_factory=list)
    argmax_share: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Row:
    """Result of a case, tokens per second; shares are parts of our time and of theirs."""

    case: str
    ours: float
    theirs: float
    ratio: float
    ours_range: tuple[float, float]
    theirs_range: tuple[float, float]
    python_share: float
    argmax_share: float


def row(timings: Timings) -> Row:
    """Medians after the warm-up, and the ratio of medians."""
    tokens = timings.case.tokens
    ours = sorted(tokens / seconds for seconds in timings.ours[1:])
    theirs = sorted(tokens / seconds for seconds in timings.theirs[1:])
    return Row(
        case=timings.case.name,
        ours=median(ours),
        theirs=median(theirs),
        ratio=median(ours) / median(theirs),
        ours_range=(ours[0], ours[-1]),
        theirs_range=(theirs[0], theirs[-1]),
        python_share=median(timings.python_share[1:]),
        argmax_share=median(timings.argmax_share[1:]),
    )


def measure(case: Case, args: argparse.Namespace) -> Row:
    """Run both engines in turns. Each is built for the case alone."""
    length = case.context + case.steps
    theirs = LlamaCppSpeed(args.their_file, threads=args.threads, sequences=case.batch, length=length)
    ours = RooftreeSpeed(
        args.file,
        threads=args.threads,
        sequences=case.batch,
        length=length + 1 + (2 * case.batch if case.steps else 0),
        isa=args.isa,
    )
    timings = Timings(case)

    def run_ours(repeat: int) -> None:
        timings.ours.append(case.seconds(ours, repeat))
        timings.python_share.append(ours.python_seconds / timings.ours[-1])

    def run_theirs(repeat: int) -> None:
        timings.theirs.append(case.seconds(theirs, repeat))
        timings.argmax_share.append(theirs.argmax_seconds / timings.theirs[-1])

    take_turns([run_ours, run_theirs], 1 + args.repeats)
    ours.close()
    theirs.close()
    return row(timings)


def take_turns(runs: Sequence[Callable[[int], None]], rounds: int) -> None:
    """Each run once per round, in an order that turns round every time."""
    for i in range(rounds):
        for run in runs if i % 2 == 0 else reversed(runs):
            time.sleep(_REST_SECONDS)
            run(i)


def cases(args: argparse.Namespace) -> list[Case]:
    """Prefill of one prompt, and decode of each batch size."""
    prefill = Case(f"prefill {args.prompt_tokens}", 1, args.prompt_tokens, 0)
    decodes = [Case(f"decode batch {batch}", batch, args.context, args.steps) for batch in args.batch]
    return [prefill, *decodes]


def show(rows: list[Row], facts: Machine, args: argparse.Namespace) -> None:
    """A table for people."""
    table = Table(title=f"tokens per second, {args.threads} threads, medians of {args.repeats}", min_width=78)
    table.add_column("")
    for heading in ("ours", "range", "llama.cpp", "range", "ratio", "Python"):
        table.add_column(heading, justify="right", no_wrap=True)
    for r in rows:
        cells = [f"{r.ours:.0f}", _range(r.ours_range), f"{r.theirs:.0f}", _range(r.theirs_range)]
        table.add_row(r.case, *cells, f"{r.ratio:.2f}", f"{100 * r.python_share:.1f} %")
    console = Console()
    console.print(table)
    console.print(f"ours {args.file.name}, llama.cpp {args.their_file.name}; {describe(facts)}")


def _range(ends: tuple[float, float]) -> str:
    return f"{ends[0]:.0f}-{ends[1]:.0f}"


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--file", default="smollm2", help=FILE_HELP)
    parser.add_argument("--their-file", help="llama.cpp's file, in the same words; default: the same as ours")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", help="our kernels; default: the best of this machine")
    parser.add_argument("--prompt-tokens", type=int, default=512, help="of the prefill case")
    parser.add_argument("--context", type=int, default=128, help="tokens before the timed decode steps")
    parser.add_argument("--steps", type=int, default=24, help="timed decode steps")
    parser.add_argument(
        "--batch", type=lambda text: [int(b) for b in text.split(",")], default=[1, 8, 16, 32]
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    args = parser.parse_args()
    args.their_file = model_file(args.their_file or args.file)
    args.file = model_file(args.file)
    return args


def main() -> None:
    args = parse_args()
    facts = machine()
    rows = [measure(case, args) for case in cases(args)]
    if args.json:
        import llama_cpp

        peer = {"name": "llama-cpp-python", "version": llama_cpp.__version__, "file": str(args.their_file)}
        result = {"machine": facts, "threads": args.threads, "repeats": args.repeats, "file": str(args.file)}
        print(json.dumps(result | {"peer": peer, "rows": [asdict(r) for r in rows]}, indent=1))
    else:
        show(rows, facts, args)


if __name__ == "__main__":
    main()
