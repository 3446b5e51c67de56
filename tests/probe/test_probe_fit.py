"""Constants come back from timings that were made of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rigs.made_up_machine import LIMITS, SETTING, TRUE, FakeMeter, FakeSteps
from rooftree.checkpoint.base import DType
from rooftree.probe.fit import ProductSample, StepSample, fit_efficiency, fit_quality, non_negative
from rooftree.probe.run import device_of, models, run_probe
from rooftree.roofline.batch import RequestTokens, batch_of
from rooftree.roofline.clock import step_clock
from rooftree.roofline.machine import ProbedMachine, machine_document, machine_from
from rooftree.specs.model import ModelSpec, RopeSpec


def test_a_probe_finds_what_the_machine_is_made_of() -> None:
    told: list[tuple[str, float]] = []
    meter = FakeMeter(1)
    result = run_probe(meter, SETTING, "2026-01-02", lambda what, done: told.append((what, done)))
    found, machine = result.machine.efficiency, result.machine
    assert [limits.threads for limits in result.limits] == [1, 4]
    assert machine.device.peak_flops == {"fp32": 400e9, "int8": 1000e9}
    assert machine.device.bandwidth == 40e9
    for name, near in (
        ("weight_bandwidth", 0.05),
        ("attention_arithmetic", 0.06),
        ("prefill_attention", 0.06),
        ("layer_seconds", 0.25),
        ("step_seconds", 0.05),
        ("request_seconds", 0.05),
        ("activation_seconds", 0.4),
    ):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=near), name
    for made, of in zip(found.products, TRUE.products, strict=True):
        assert (made.format, made.rows) == (of.format, of.rows)
        assert made.fractions == pytest.approx(of.fractions, rel=0.06)
    assert machine.quality.p90 < 0.05
    assert machine_from(machine_document(machine), "here") == machine
    assert all(rig.closed for rig in meter.rigs)
    shares = [done for _, done in told]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)


def test_other_models_are_predicted() -> None:
    result = run_probe(FakeMeter(2), SETTING, "2026-01-02", lambda what, done: None)
    spec = ModelSpec(
        family="llama",
        vocab_size=49152,
        hidden_size=1024,
        intermediate_size=4096,
        num_layers=12,
        num_heads=16,
        num_kv_heads=4,
        head_dim=64,
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
        rope=RopeSpec(),
        tie_word_embeddings=True,
        windows=(None,) * 12,
    )
    rig = FakeMeter(3).steps(spec, "Q8_0", 1, 1)
    assert isinstance(rig, FakeSteps)
    clock = step_clock(rig.costs, result.machine.device, result.machine.efficiency)
    truth = step_clock(rig.costs, result.machine.device, TRUE)
    for new, context, count in ((1, 16, 1), (1, 4000, 1), (1, 100, 32), (512, 0, 1), (64, 2048, 1)):
        batch = batch_of([RequestTokens(new, context, count)], rig.costs.windows)
        assert clock.seconds(batch) == pytest.approx(truth.seconds(batch), rel=0.06)


def test_quality_is_the_error_of_the_steps() -> None:
    rig = FakeMeter(1).steps(*_first_model(), 1, 1)
    assert isinstance(rig, FakeSteps)
    device = device_of(SETTING, LIMITS, "2026-01-02")
    batch = batch_of([RequestTokens(1, 16)], rig.costs.windows)
    seconds = step_clock(rig.costs, device, TRUE).seconds(batch)
    samples = [StepSample(rig.costs, batch, seconds * factor, 1e-4) for factor in (0.8, 1.0, 1.0)]
    quality = fit_quality(samples, device, TRUE)
    assert quality.steps == 3
    assert quality.median == pytest.approx(0.0)
    assert quality.p90 == pytest.approx(0.8 * 0.25)


def test_attention_that_no_step_shows_gives_constants_all_the_same() -> None:
    """Where steps after long contexts happen to be the faster ones, the machine file must be one."""
    device = device_of(SETTING, LIMITS, "2026-01-02")
    meter = FakeMeter(1)
    rig, chain = meter.steps(*_first_model(), 1, 1), meter.products("Q4_0", 2048, 2048, 4, 64)
    clock = step_clock(rig.costs, device, replace(TRUE, attention_arithmetic=1e9, kv_bandwidth=1e9))
    steps = []
    for new, context, count in [(1, c, n) for c in (16, 512, 2048) for n in (1, 4, 16)] + [(64, 0, 1)]:
        batch = batch_of([RequestTokens(new, context, count)], rig.costs.windows)
        seconds = clock.seconds(batch) * (1 - context / 20_000)
        steps.append(StepSample(rig.costs, batch, seconds, 1e-4))
    products = [
        ProductSample("q4_0", "packed", rows, chain.weights, chain.weight_bytes, chain.seconds(rows))
        for rows in (1, 8, 64)
    ]
    found = fit_efficiency(products, steps, device)
    machine = ProbedMachine(SETTING, device, found, fit_quality(steps, device, found), "2026-01-02")
    assert machine_from(machine_document(machine), "here") == machine
    assert 0 < found.attention_arithmetic <= 1


def _first_model() -> tuple[ModelSpec, DType]:
    return models()[0], "Q4_0"


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 5))
def test_least_squares_without_negative_constants(seed: int, columns: int) -> None:
    rng = np.random.default_rng(seed)
    matrix = rng.uniform(0.1, 1, (20, columns)) * 10.0 ** rng.integers(-6, 6, columns)
    truth = rng.uniform(0, 1, columns) * (rng.random(columns) < 0.7)
    values = matrix @ truth
    found = non_negative(matrix, values, sweeps=20_000)
    assert (found >= 0).all()
    assert np.abs(matrix @ found - values).max() <= 1e-3 * max(1e-9, np.abs(values).max())


def test_a_term_that_nothing_shows_is_left_out() -> None:
    matrix = np.array([[1.0, 0.0], [2.0, 0.0]])
    assert non_negative(matrix, np.array([2.0, 4.0])) == pytest.approx([2.0, 0.0])
