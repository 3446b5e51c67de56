"""Microseconds that telemetry adds to a step of the engine, beside the step itself.

Two parts: recording in the step loop (the step's sums, its prediction, the totals, the step log), and the
totals on their way to the API process (encoded, decoded).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from machine import describe, machine
from model_files import FILE_HELP, model_file
from rooftree.checkpoint.open import open_checkpoint
from rooftree.engine.builder import build_engine_core
from rooftree.engine.config import EngineConfig
from rooftree.engine.core import EngineCore
from rooftree.engine.kv_cache_dtype import kv_cache_dtype
from rooftree.engine.messages import EngineCoreRequest, StepTotals
from rooftree.engine.step_log import StepLog
from rooftree.engine.telemetry import Telemetry
from rooftree.engine.this_machine import engine_costs, this_machine
from rooftree.roofline.clock import step_clock
from rooftree.sampling.params import SamplingParams

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


@dataclass(frozen=True)
class Cost:
    """Means over the steps of a batch; microseconds but for ``share``, which is of ``step``."""

    batch: int
    step: float
    record: float
    wire: float
    share: float


class Timed(Telemetry):
    """Telemetry that times itself."""

    spent = 0.0

    def note(self, *step: Any, **rest: Any) -> None:
        """As ``Telemetry.note``."""
        begin = perf_counter()
        super().note(*step, **rest)
        self.spent += perf_counter() - begin


def wire_seconds(totals: StepTotals) -> float:
    """Encoding and decoding the totals, as one does it a thousand times."""
    encode, decoder = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(StepTotals)
    begin = perf_counter()
    for _ in range(1000):
        decoder.decode(encode(totals))
    return (perf_counter() - begin) / 1000


def costs_by_batch(model: str, batches: list[int], threads: int, steps: int) -> Iterator[Cost]:
    """Run each batch for so many steps."""
    config = EngineConfig(model=model, threads=threads, max_num_seqs=max(batches), max_model_len=steps + 64)
    checkpoint = open_checkpoint(model)
    core, _ = build_engine_core(config, checkpoint)
    found = this_machine(threads, str(core.executor.isa), core.executor.read_rate)
    model_costs = engine_costs(checkpoint, kv_cache_dtype(config, checkpoint))
    clock = step_clock(model_costs, found.device, found.efficiency)
    with tempfile.TemporaryDirectory() as folder:
        for batch in batches:
            telemetry = Timed(clock, model_costs.windows, 0.0, StepLog(Path(folder) / "steps"))
            engine = EngineCore(config, core.executor, core.scheduler, telemetry=telemetry)
            for index in range(batch):
                engine.add_request(EngineCoreRequest(f"{batch}-{index}", [index] * 32, GREEDY, steps, 0))
            while engine.has_unfinished_requests:
                engine.step()
            totals = telemetry.totals
            step, noted = totals.seconds / totals.num_steps, telemetry.spent / totals.num_steps
            wire = wire_seconds(totals)
            telemetry.close()
            yield Cost(batch, 1e6 * step, 1e6 * noted, 1e6 * wire, (noted + wire) / step)
    core.close()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="smollm2", help=FILE_HELP)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    here = machine()
    path = str(model_file(options.model))
    rows = list(costs_by_batch(path, options.batch, options.threads, options.steps))
    if options.json:
        print(json.dumps({"machine": here, "model": options.model, "costs": [asdict(r) for r in rows]}))
        return
    table = Table("batch", "step µs", "record", "wire", "share", title=describe(here))
    for row in rows:
        parts = (row.step, row.record, row.wire)
        table.add_row(str(row.batch), *(f"{part:.1f}" for part in parts), f"{row.share:.2%}")
    Console().print(table)


if __name__ == "__main__":
    main()
