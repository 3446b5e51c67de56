"""The whole probe: limits, products, steps, and the constants that explain them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from rooftree.checkpoint.base import DType
from rooftree.checkpoint.formats import tensor_bytes
from rooftree.engine.executors.processor import memory_bytes
from rooftree.probe.fit import ProductSample, StepSample, fit_efficiency, fit_quality
from rooftree.probe.limits import Limits
from rooftree.probe.meter import Meter, Steps
from rooftree.probe.random_model import llama_spec
from rooftree.probe.steps import StepShape, TimedStep
from rooftree.roofline.machine import ProbedMachine, Setting
from rooftree.specs.catalogue import THIS_MACHINE
from rooftree.specs.device import DeviceSpec
from rooftree.specs.model import ModelSpec

Progress = Callable[[str, float], None]

FORMATS: tuple[DType, ...] = ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K", "F16", "BF16")
_FLOATS = {"F16": "fp16", "BF16": "bf16"}
ROWS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 64)
PRODUCT_SHAPE = (2048, 2048)
PRODUCT_BYTES = 96 << 20

DECODES = (
    *((1, 16), (1, 2048), (2, 512), (4, 16), (4, 1024), (8, 16), (8, 2048)),
    *((16, 16), (16, 512), (32, 16), (32, 256)),
)
CHUNKS = ((16, 0), (16, 2048), (64, 0), (64, 1024), (128, 1024), (256, 0), (512, 0))
DECODE_REPEATS = 2
KV_TOKENS = 20_000

ROUNDS = 4
QUIET = 0.2
"""Quantile of the repeats that is taken: what disturbs a measurement only makes it longer."""


def models() -> tuple[ModelSpec, ...]:
    """Two of different widths and depths, so that what a layer costs is told from what a weight does."""
    return (
        llama_spec(
            hidden=768, intermediate=2048, layers=20, heads=12, kv_heads=4, vocab=32_000, positions=3072
        ),
        llama_spec(
            hidden=2048, intermediate=5632, layers=3, heads=32, kv_heads=8, vocab=16_000, positions=3072
        ),
    )


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """``limits``: of one thread, then of all where there are more."""

    machine: ProbedMachine
    limits: tuple[Limits, ...]


def run_probe(meter: Meter, setting: Setting, day: str, progress: Progress) -> ProbeResult:
    """Measure everything and fit.

    Args:
        day: as YYYY-MM-DD, for the record.
        progress: told what is being measured, and the share that is done.

    Raises:
        RooftreeError: the memory does not hold the small models that are measured.
    """
    progress("limits", 0.0)
    limits = [meter.limits(threads) for threads in sorted({1, setting.threads})]
    with closing(_Rigs(meter)) as rigs:
        for turn in range(ROUNDS):
            rigs.measure(_part(progress, turn))
            limits[-1] = limits[-1].best(meter.limits(setting.threads))
        products, steps = rigs.products(), rigs.steps()
    progress("constants", 0.98)
    device = device_of(setting, limits[-1], day)
    efficiency = fit_efficiency(products, steps, device)
    quality = fit_quality(steps, device, efficiency)
    progress("done", 1.0)
    return ProbeResult(ProbedMachine(setting, device, efficiency, quality, day), tuple(limits))


def device_of(setting: Setting, limits: Limits, day: str) -> DeviceSpec:
    """The machine for the planner."""
    measured = f"rooftree probe, {day}, {limits.threads} threads, {setting.isa}"
    return DeviceSpec(
        name=setting.cpu,
        aliases=(THIS_MACHINE,),
        peak_flops={"fp32": limits.fp32, "int8": limits.best_int8},
        bandwidth=limits.read,
        memory_bytes=memory_bytes(),
        sources=dict.fromkeys(("peak_flops", "bandwidth", "memory_bytes"), measured),
        certainty="high: measured",
    )


def _part(progress: Progress, turn: int) -> Progress:
    """Progress of one turn, as a part of the whole."""
    return lambda what, done: progress(what, (0.5 + turn + done) / (ROUNDS + 0.7))


class _Rigs:
    """All that is timed, in turns: what disturbs the machine for a while meets all of it."""

    def __init__(self, meter: Meter) -> None:
        n, k = PRODUCT_SHAPE
        self._chains = {
            dtype: meter.products(dtype, n, k, round(PRODUCT_BYTES / tensor_bytes(dtype, (n, k))), max(ROWS))
            for dtype in FORMATS
        }
        most = max(batch for batch, _ in DECODES)
        self._models = [meter.steps(spec, "Q4_0", KV_TOKENS, most) for spec in models()]
        self._shapes = [StepShape(batch, context) for batch, context in DECODES]
        self._shapes += [StepShape(1, context, chunk) for chunk, context in CHUNKS]
        self._seconds: dict[tuple[DType, int], list[float]] = defaultdict(list)
        self._timed: dict[tuple[int, StepShape], list[TimedStep]] = defaultdict(list)

    def measure(self, progress: Progress) -> None:
        """One turn."""
        for at, (dtype, chain) in enumerate(self._chains.items()):
            progress(f"products {dtype}", 0.3 * at / len(self._chains))
            for rows in ROWS:
                self._seconds[dtype, rows].append(chain.seconds(rows))
        for index, rig in enumerate(self._models):
            progress("steps of the engine", 0.3 + 0.7 * index / len(self._models))
            for shape in self._shapes:
                self._timed[index, shape] += rig.time(shape, 1 if shape.chunk else DECODE_REPEATS)

    def products(self) -> list[ProductSample]:
        """What products took."""
        return [
            ProductSample(
                format=_FLOATS.get(dtype, dtype.lower()),
                arithmetic=_FLOATS.get(dtype, "packed"),
                rows=rows,
                weights=chain.weights,
                num_bytes=chain.weight_bytes,
                seconds=quiet(self._seconds[dtype, rows]),
            )
            for dtype, chain in self._chains.items()
            for rows in ROWS
        ]

    def steps(self) -> list[StepSample]:
        """What steps took."""
        return [_sample(self._models[index], steps) for (index, _), steps in self._timed.items()]

    def close(self) -> None:
        """Give memory and threads back."""
        for rig in self._models:
            rig.close()


def _sample(rig: Steps, steps: Sequence[TimedStep]) -> StepSample:
    native = quiet([step.native_seconds for step in steps])
    outside = quiet([step.seconds - step.native_seconds for step in steps])
    return StepSample(rig.costs, steps[len(steps) // 2].batch, native + outside, outside)


def quiet(seconds: Sequence[float]) -> float:
    """What repeats come to where nothing disturbs them."""
    return float(np.quantile(seconds, QUIET))
