"""Microseconds that telemetry adds to a step of the engine, beside the step itself.

Three parts: recording (the step's sums, its prediction, the totals), what the step log takes in the step
loop, and the totals on their way to the API process (encoded, decoded).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
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
from rooftree.engine.executors.cpu import CPUExecutor
from rooftree.engine.messages import EngineCoreOutputs, EngineCoreRequest
from rooftree.engine.stats import StepRecord
from rooftree.engine.step_log import StepLog
from rooftree.engine.telemetry import Telemetry
from rooftree.engine.this_machine import engine_costs, this_machine
from rooftree.roofline.clock import step_clock
from rooftree.sampling.params import SamplingParams

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)


@dataclass(frozen=True)
class Cost:
    """Medians over the decode steps of a batch; microseconds but for ``share``, which is of ``step``."""

    batch: int
    step: float
    record: float
    log: float
    wire: float
    share: float


class Timed(Telemetry):
    """Telemetry that times itself, and a step log after it."""

    def __init__(self, *parts: Any, log: StepLog) -> None:
        super().__init__(*parts)
        self.spent: list[tuple[float, float]] = []
        self._log = log

    def record(self, *step: Any, **rest: Any) -> StepRecord:
        """As ``Telemetry.record``."""
        begin = perf_counter()
        record = super().record(*step, **rest)
        recorded = perf_counter()
        self._log.add(record)
        self.spent.append((recorded - begin, perf_counter() - recorded))
        return record


def wire_seconds(outputs: EngineCoreOutputs) -> float:
    """Encoding and decoding the totals of a message: with them less without."""
    stats = outputs.stats
    assert stats is not None
    bare = msgspec.structs.replace(outputs, stats=msgspec.structs.replace(stats, steps=type(stats.steps)()))
    encode, decoder = msgspec.msgpack.Encoder().encode, msgspec.msgpack.Decoder(EngineCoreOutputs)

    def seconds(message: EngineCoreOutputs) -> float:
        begin = perf_counter()
        decoder.decode(encode(message))
        return perf_counter() - begin

    return median(seconds(outputs) for _ in range(1000)) - median(seconds(bare) for _ in range(1000))


def costs_by_batch(model: str, batches: list[int], threads: int, steps: int) -> Iterator[Cost]:
    """Run each batch for so many steps."""
    config = EngineConfig(model=model, threads=threads, max_num_seqs=max(batches), max_model_len=steps + 64)
    checkpoint = open_checkpoint(model)
    core, _ = build_engine_core(config, checkpoint)
    assert isinstance(core.executor, CPUExecutor)
    found = this_machine(threads, str(core.executor.isa))
    model_costs = engine_costs(checkpoint, config.kv_cache_dtype)
    clock = step_clock(model_costs, found.device, found.efficiency)
    with tempfile.TemporaryDirectory() as folder:
        log = StepLog(Path(folder) / "steps")
        for batch in batches:
            telemetry = Timed(clock, model_costs.windows, log=log)
            engine = EngineCore(config, core.executor, core.scheduler, telemetry=telemetry)
            for index in range(batch):
                engine.add_request(EngineCoreRequest(f"{batch}-{index}", [index] * 32, GREEDY, steps, 0))
            step_seconds = []
            while engine.has_unfinished_requests:
                outputs = engine.step()
                assert engine.last_step is not None
                step_seconds.append(engine.last_step.seconds)
            record, logged = (median(part) for part in zip(*telemetry.spent[1:], strict=True))
            wire = wire_seconds(outputs)
            step = median(step_seconds[1:])
            micro = [1e6 * seconds for seconds in (step, record, logged, wire)]
            yield Cost(batch, *micro, share=(record + logged + wire) / step)
        log.close()
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
    table = Table("batch", "step µs", "record", "log", "wire", "share", title=describe(here))
    for row in rows:
        parts = (row.step, row.record, row.log, row.wire)
        table.add_row(str(row.batch), *(f"{part:.1f}" for part in parts), f"{row.share:.2%}")
    Console().print(table)


if __name__ == "__main__":
    main()
