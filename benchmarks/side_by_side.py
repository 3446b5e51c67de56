"""Our engine and others on the same cases in turns (A B, B A, ...), so that drift of the machine meets all.

Figures are medians of the repeats; the first round is a warm-up and not counted.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Protocol

import numpy as np
from rich.console import Console
from rich.table import Table

# Idle threads of one engine may spin for a moment; the other begins after that.
_REST_SECONDS = 0.05
_WIDTH = 120


class Engine(Protocol):
    """What is timed. ``aside_seconds``: of the last timing, the part that was not the engine's own kernels.

    Ours: Python around the native program; theirs: choosing the token from the logits.
    """

    @property
    def aside_seconds(self) -> float: ...

    def prefill_seconds(self, prompt: Sequence[int]) -> float: ...

    def decode_seconds(self, prompts: Sequence[Sequence[int]], steps: int) -> float: ...

    def close(self) -> None: ...


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

    @property
    def length(self) -> int:
        """Tokens of a sequence at its end, with room for what is decoded while the batch is filling."""
        return self.context + 1 + (self.steps + 2 * self.batch if self.steps else 0)

    def seconds(self, engine: Engine, repeat: int) -> float:
        """One timing. A prefill's prompt is new each time, so no cache knows it; a decode's may be known."""
        if self.steps == 0:
            return engine.prefill_seconds(make_prompts(1, self.context, seed=repeat)[0])
        return engine.decode_seconds(make_prompts(self.batch, self.context, seed=self.batch), self.steps)


def prefill_case(context: int, limit: int) -> Case:
    """One prompt of ``context`` tokens, less the answer's one where the model's ``limit`` asks for it."""
    return Case(f"prefill {context}", 1, min(context, limit - 1), 0)


def decode_case(batch: int, context: int, steps: int, limit: int) -> Case:
    """``steps`` steps after ``context`` tokens; up to the model's ``limit`` where they would lead beyond."""
    name = f"decode batch {batch}" + (f", context {context}" if context >= 1024 else "")
    wanted = Case(name, batch, context, steps)
    return Case(name, batch, context - max(0, wanted.length - limit), steps)


def make_prompts(batch: int, length: int, seed: int) -> list[list[int]]:
    """Different prompts of the same length; which tokens they hold does not matter to the time."""
    prompts: list[list[int]] = np.random.default_rng(seed).integers(1000, 30_000, (batch, length)).tolist()
    return prompts


@dataclass
class _Timings:
    """Of one engine: seconds of each round, the first a warm-up, and the part of each that went aside."""

    seconds: list[float] = field(default_factory=list)
    aside: list[float] = field(default_factory=list)

    def rates(self, tokens: int) -> list[float]:
        return sorted(tokens / seconds for seconds in self.seconds[1:])

    @property
    def aside_share(self) -> float:
        return median(a / s for a, s in zip(self.aside[1:], self.seconds[1:], strict=True))


@dataclass(frozen=True)
class Row:
    """Result of a case, tokens per second.

    Attributes:
        peer: whose figures ``theirs`` are: the fastest of those measured.
        python_share, argmax_share: parts of our time and of theirs.
        target: the ratio asked for, if one is.
        read_gb_per_s: the machine's read bandwidth, measured in turns with the engines; batch 1 only.
        read_share: packed weights read per second over it.
    """

    case: str
    context: int
    ours: float
    theirs: float
    peer: str
    ratio: float
    ours_range: tuple[float, float]
    theirs_range: tuple[float, float]
    python_share: float
    argmax_share: float
    target: float | None = None
    read_gb_per_s: float | None = None
    read_share: float | None = None


def measure(
    case: Case,
    ours: Engine,
    peers: Mapping[str, Engine],
    repeats: int,
    beside: Sequence[Callable[[int], None]] = (),
) -> Row:
    """Time all engines in turns, and ``beside``; each was built for the case alone, and is closed."""
    timings = {name: _Timings() for name in ("ours", *peers)}

    def runs(name: str, engine: Engine) -> Callable[[int], None]:
        def run(repeat: int) -> None:
            timings[name].seconds.append(case.seconds(engine, repeat))
            timings[name].aside.append(engine.aside_seconds)

        return run

    engines: dict[str, Engine] = {"ours": ours, **peers}
    take_turns([*(runs(name, engine) for name, engine in engines.items()), *beside], 1 + repeats)
    for engine in engines.values():
        engine.close()
    rates = {name: timing.rates(case.tokens) for name, timing in timings.items()}
    best = max(peers, key=lambda name: median(rates[name]))
    return Row(
        case=case.name,
        context=case.context,
        ours=median(rates["ours"]),
        theirs=median(rates[best]),
        peer=best,
        ratio=median(rates["ours"]) / median(rates[best]),
        ours_range=(rates["ours"][0], rates["ours"][-1]),
        theirs_range=(rates[best][0], rates[best][-1]),
        python_share=timings["ours"].aside_share,
        argmax_share=timings[best].aside_share,
    )


def take_turns(runs: Sequence[Callable[[int], None]], rounds: int) -> None:
    """Each run once per round, in an order that turns round every time."""
    for i in range(rounds):
        for run in runs if i % 2 == 0 else reversed(runs):
            time.sleep(_REST_SECONDS)
            run(i)


def numbers(text: str) -> tuple[int, ...]:
    """``1,8,16`` of a command line."""
    return tuple(int(part) for part in text.split(","))


def tell(name: str, row: Row) -> None:
    """A line on standard error as soon as a case is done; long runs lose nothing then."""
    print(f"{name}: {row.case}: {row.ours:.1f} / {row.theirs:.1f} = {row.ratio:.2f}", file=sys.stderr)


def wide_console() -> Console:
    """As wide as the terminal, or wide enough for ``speed_table``."""
    return Console(width=None if sys.stdout.isatty() else _WIDTH)


def speed_table(title: str, rows: Sequence[Row]) -> Table:
    """A table for people."""
    table = Table(title=title, min_width=78)
    table.add_column("", no_wrap=True)
    for heading in ("ours", "range", "theirs", "range", "ratio", "target", "Python", "of read"):
        table.add_column(heading, justify="right", no_wrap=True)
    for r in rows:
        cells = [f"{r.ours:.0f}", _range(r.ours_range), f"{r.theirs:.0f}", _range(r.theirs_range)]
        target = "" if r.target is None else f"{r.target:.1f}"
        read = "" if r.read_share is None else f"{r.read_share:.0%}"
        table.add_row(r.case, *cells, f"{r.ratio:.2f}", target, f"{r.python_share:.1%}", read)
    return table


def _range(ends: tuple[float, float]) -> str:
    return f"{ends[0]:.0f}-{ends[1]:.0f}"
