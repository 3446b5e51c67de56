"""The cost model beside the engine: predicted and measured seconds of steps, after a probe of this machine.

The models are not those that the probe measures. A figure is the lower fifth of repeats that took turns.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from machine import describe, machine
from model_files import model_file
from rooftree import _native
from rooftree.checkpoint.open import open_checkpoint
from rooftree.engine.config import EngineConfig
from rooftree.engine.executors.processor import processor_name
from rooftree.probe.meter import MachineMeter
from rooftree.probe.run import quiet, run_probe
from rooftree.probe.steps import StepRig, StepShape, TimedStep
from rooftree.roofline.clock import step_clock
from rooftree.roofline.machine import ProbedMachine, Setting, read_machine

BATCHES = (1, 2, 4, 8, 16, 32)
CONTEXTS = (16, 256, 1024, 4096)
CHUNKS = (16, 64, 256, 512)
BEFORE = (0, 512, 2048, 3584)
DECODE_REPEATS = 3
_LENGTH = 4096 + 16 + 2 * 32 * (4096 // 512 + 2)
"""The longest context, and what those who decode first gain while the last ones wait."""

MEDIAN_TARGET, P90_TARGET = 0.10, 0.25


@dataclass(frozen=True)
class Step:
    """Seconds of a step; ``error``: predicted over measured, less 1."""

    decodes: int
    context: int
    chunk: int
    measured: float
    predicted: float
    error: float


@dataclass(frozen=True)
class ModelResult:
    """Relative errors of all steps of a model."""

    model: str
    median: float
    p90: float
    bias: float
    steps: list[Step]

    @property
    def holds(self) -> bool:
        """Within both targets."""
        return self.median < MEDIAN_TARGET and self.p90 < P90_TARGET


def shapes() -> Iterator[StepShape]:
    """The grid."""
    for batch in BATCHES:
        for context in CONTEXTS:
            yield StepShape(batch, context)
    for chunk in CHUNKS:
        for context in BEFORE:
            yield StepShape(1, context, chunk)


def measure(name: str, probed: ProbedMachine, rounds: int) -> ModelResult:
    """Every step of the grid ``rounds`` times, in turn."""
    path = model_file(name)
    checkpoint = open_checkpoint(str(path))
    rig = StepRig(checkpoint, _config(path, checkpoint.spec.kv_bytes_per_token(2), probed.setting))
    timed: dict[StepShape, list[TimedStep]] = {}
    try:
        for _ in range(rounds):
            for shape in shapes():
                repeats = 1 if shape.chunk else DECODE_REPEATS
                timed.setdefault(shape, []).extend(rig.time(shape, repeats))
        clock = step_clock(rig.costs, probed.device, probed.efficiency)
    finally:
        rig.close()
    steps = []
    for shape, each in timed.items():
        measured = quiet([step.seconds for step in each])
        predicted = clock.seconds(each[len(each) // 2].batch)
        error = predicted / measured - 1
        steps.append(Step(shape.decodes, shape.context, shape.chunk, measured, predicted, error))
    errors = np.array([step.error for step in steps])
    sizes = np.abs(errors)
    return ModelResult(
        name, float(np.median(sizes)), float(np.quantile(sizes, 0.9)), float(errors.mean()), steps
    )


def _config(path: Path, kv_bytes_per_token: int, setting: Setting) -> EngineConfig:
    tokens = max(BATCHES) * (_LENGTH + 16)
    return EngineConfig(
        model=str(path),
        max_num_seqs=max(BATCHES),
        max_model_len=_LENGTH,
        kv_cache_memory=tokens * kv_bytes_per_token,
        kv_watermark=0.0,
        enable_prefix_caching=False,
        threads=setting.threads,
        isa=setting.isa,
    )


def probe(threads: int, isa: str) -> ProbedMachine:
    """Now, without writing it anywhere."""
    setting = Setting(processor_name(), threads, isa)
    result = run_probe(MachineMeter(setting), setting, date.today().isoformat(), lambda what, done: None)
    return result.machine


def show(results: list[ModelResult], every: bool) -> None:
    """Tables for people."""
    console = Console()
    for result in results:
        verdict = "" if result.holds else ": beyond the target"
        console.print(
            f"{result.model}: {len(result.steps)} steps, median error {result.median:.1%}, "
            f"P90 {result.p90:.1%}, mean {result.bias:+.1%}{verdict}"
        )
        if not every:
            continue
        table = Table()
        for heading in ("requests", "context", "prompt tokens", "measured ms", "predicted ms", "error"):
            table.add_column(heading, justify="right")
        for step in result.steps:
            milliseconds = (f"{step.measured * 1e3:.2f}", f"{step.predicted * 1e3:.2f}")
            shape = (str(step.decodes), str(step.context), str(step.chunk or ""))
            table.add_row(*shape, *milliseconds, f"{step.error:+.1%}")
        console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", action="append", help="default: smollm2 and llama-1b")
    parser.add_argument("--machine", type=Path, help="what rooftree probe wrote; default: probe now")
    parser.add_argument("--rounds", type=int, default=2, help="through all steps")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--isa", default=_native.supported_isas()[0], help="kernels")
    parser.add_argument("--every", action="store_true", help="show every step")
    parser.add_argument("--target", action="store_true", help="exit status 1 beyond the target")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the tables")
    args = parser.parse_args()
    facts = machine()
    probed = read_machine(args.machine) if args.machine else probe(args.threads, args.isa)
    results = [measure(name, probed, args.rounds) for name in args.model or ("smollm2", "llama-1b")]
    if args.json:
        quality = asdict(probed.quality)
        models = [asdict(result) for result in results]
        print(json.dumps({"machine": facts, "probe": quality, "models": models}, indent=1))
    else:
        show(results, args.every)
        print(describe(facts))
    if args.target and not all(result.holds for result in results):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
