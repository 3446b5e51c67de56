"""A machine that is made up: limits, efficiencies, and the timings that come of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rooftree.checkpoint.base import DType
from rooftree.checkpoint.stored_architecture import stored_architecture
from rooftree.probe.limits import Limits
from rooftree.probe.meter import Products, Steps
from rooftree.probe.random_model import random_checkpoint
from rooftree.probe.run import FORMATS, ROWS, device_of
from rooftree.probe.steps import StepShape, TimedStep
from rooftree.roofline.batch import RequestTokens, batch_of
from rooftree.roofline.clock import step_clock
from rooftree.roofline.costs import ModelCosts, model_costs
from rooftree.roofline.efficiency import Efficiency, ProductRates
from rooftree.roofline.machine import Setting
from rooftree.specs.model import ModelSpec
from rooftree.specs.model_architecture import architecture_of
from rooftree.specs.weight_format import FORMATS as STORED

SETTING = Setting("made up", 4, "avx2")
LIMITS = Limits(4, 40e9, 400e9, {"slow": 500e9, "fast": 1000e9})


def rates(name: str, bits: float) -> ProductRates:
    """From memory: bound by bytes with one row, and nearing half of the peak."""
    peak = 400e9 if name in ("fp16", "bf16") else 1000e9
    fractions = [2 * rows / max(bits / 8 / 36e9, 2 * (rows + 2) / (0.5 * peak)) / peak for rows in ROWS]
    return ProductRates(name, ROWS, tuple(fractions))


def bits_of(name: str) -> float:
    return 8 * STORED[name].bytes_of((256, 1024)) / (256 * 1024)


NAMES = {dtype: {"F16": "fp16", "BF16": "bf16"}.get(dtype, dtype.lower()) for dtype in FORMATS}
TRUE = Efficiency(
    weight_bandwidth=0.9,
    kv_bandwidth=0.9,
    attention_arithmetic=0.15,
    prefill_attention=2.5,
    layer_seconds=20e-6,
    step_seconds=100e-6,
    request_seconds=7e-6,
    activation_seconds=5e-11,
    products=tuple(rates(name, bits_of(name)) for name in NAMES.values()),
)


class FakeProducts(Products):
    """The seconds that ``TRUE`` gives."""

    def __init__(self, dtype: DType, weights: int, noise: np.random.Generator) -> None:
        self._rates = next(r for r in TRUE.products if r.format == NAMES[dtype])
        self._peak = LIMITS.fp32 if dtype in ("F16", "BF16") else LIMITS.best_int8
        self._noise = noise
        self.weights = weights
        self.weight_bytes = round(weights * bits_of(NAMES[dtype]) / 8)

    def seconds(self, rows: int) -> float:
        exact = 2 * self.weights * self._rates.equivalent_rows(rows) / self._peak
        return exact * (1 + 0.02 * float(self._noise.exponential()))


class FakeSteps(Steps):
    """The same for steps; now and then something disturbs one."""

    def __init__(self, costs: ModelCosts, noise: np.random.Generator) -> None:
        self.costs = costs
        device = device_of(SETTING, LIMITS, "2026-01-02")
        self._clock = step_clock(costs, device, TRUE)
        self._noise = noise
        self.closed = False

    def time(self, shape: StepShape, repeats: int) -> Sequence[TimedStep]:
        if shape.chunk:
            request = RequestTokens(shape.chunk, shape.context)
        else:
            request = RequestTokens(1, shape.context, shape.decodes)
        batch = batch_of([request], self.costs.windows)
        steps = []
        for _ in range(repeats):
            slow = 1 + 0.02 * float(self._noise.exponential()) + 0.5 * (self._noise.random() < 0.1)
            outside = 1e-4 + 7e-6 * batch.sequences
            seconds = self._clock.seconds(batch) * slow
            steps.append(TimedStep(batch, seconds, seconds - outside))
        return steps

    def close(self) -> None:
        self.closed = True


class FakeMeter:
    """A machine made of ``LIMITS`` and ``TRUE``."""

    def __init__(self, seed: int) -> None:
        self._noise = np.random.default_rng(seed)
        self.rigs: list[FakeSteps] = []

    def limits(self, threads: int) -> Limits:
        part = threads / LIMITS.threads
        int8 = {way: rate * part for way, rate in LIMITS.int8.items()}
        return Limits(threads, LIMITS.read * part, LIMITS.fp32 * part, int8)

    def products(self, dtype: DType, n: int, k: int, count: int, max_rows: int) -> Products:
        return FakeProducts(dtype, count * n * k, self._noise)

    def steps(self, spec: ModelSpec, dtype: DType, kv_tokens: int, batch: int) -> Steps:
        tiny = replace(spec, vocab_size=64, num_layers=1, windows=(None,))
        # Formats are those of the real model, its numbers are not needed.
        scheme = stored_architecture(random_checkpoint(tiny, dtype)).scheme
        costs = model_costs(architecture_of(spec, scheme=replace(scheme, exact={})), kv_dtype="fp16")
        self.rigs.append(FakeSteps(costs, self._noise))
        return self.rigs[-1]
