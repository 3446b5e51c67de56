"""The rigs that measure: steps of the shapes asked for, products of every format."""

from __future__ import annotations

import os
from typing import get_args

import numpy as np
import pytest

from rooftree import _native
from rooftree.checkpoint.base import DType
from rooftree.checkpoint.formats import dequantize
from rooftree.engine.config import EngineConfig
from rooftree.errors import ConfigError, RooftreeError
from rooftree.probe.limits import Limits, measure_limits
from rooftree.probe.meter import MachineMeter
from rooftree.probe.products import ProductChain
from rooftree.probe.random_model import llama_spec, random_checkpoint, random_tensor
from rooftree.probe.steps import StepRig, StepShape
from rooftree.roofline.batch import Batch, RequestTokens, Window, batch_of
from rooftree.roofline.machine import Setting

SPEC = llama_spec(hidden=64, intermediate=96, layers=2, heads=4, kv_heads=2, vocab=128, positions=256)


@pytest.fixture(scope="module")
def rig() -> StepRig:
    config = EngineConfig(
        model="random",
        max_num_seqs=4,
        max_model_len=256,
        max_num_batched_tokens=32,
        kv_cache_memory=1 << 20,
        kv_watermark=0.0,
        enable_prefix_caching=False,
        threads=1,
    )
    return StepRig(random_checkpoint(SPEC, "Q8_0"), config)


def expected(*requests: RequestTokens) -> Batch:
    return batch_of(requests, [Window()])


@pytest.mark.parametrize("context", [1, 40, 100])
def test_a_prompt_is_cut_where_it_was_asked(rig: StepRig, context: int) -> None:
    whole = context // 32 * 32
    (step,) = rig.time(StepShape(1, whole, 20), 1)
    assert step.batch == expected(RequestTokens(20, whole))
    assert 0 < step.native_seconds < step.seconds


@pytest.mark.parametrize("decodes", [1, 3, 4])
def test_decodes_have_their_contexts(rig: StepRig, decodes: int) -> None:
    steps = rig.time(StepShape(decodes, 40), 3)
    for step in steps:
        assert (step.batch.tokens, step.batch.outputs, step.batch.sequences) == (decodes,) * 3
        assert 41 <= step.batch.spans[0].decode / decodes <= 60
    reads = [step.batch.spans[0].decode for step in steps]
    assert reads == [reads[0], reads[0] + decodes, reads[0] + 2 * decodes]


def test_what_does_not_fit_is_told(rig: StepRig) -> None:
    with pytest.raises(RooftreeError, match="context window"):
        rig.time(StepShape(1, 250), 20)
    (step,) = rig.time(StepShape(1, 0, 5), 1)
    assert step.batch.tokens == 5


def test_random_weights_are_as_asked() -> None:
    for dtype in set(get_args(DType)) - {"NVFP4", "MXFP4", "F8_E4M3"}:
        tensor = random_tensor("w", (48, 256), dtype)
        values = dequantize(tensor)
        assert values.shape == (48, 256)
        assert np.isfinite(values).all()
        assert 0.01 < float(values.std()) < 0.03


@pytest.mark.parametrize("dtype", ["Q4_0", "Q4_K", "F16"])
def test_a_chain_counts_its_weights(dtype: DType) -> None:
    isa = _native.supported_isas()[0]
    chain = ProductChain(dtype, 64, 256, count=3, max_rows=8, threads=2, isa=isa)
    assert chain.weights == 3 * 64 * 256
    assert chain.weight_bytes * 8 >= 4 * chain.weights
    assert all(chain.seconds(rows) > 0 for rows in (1, 5, 8))


def test_the_better_of_two_measurements_counts() -> None:
    one, other = Limits(2, 3.0, 4.0, {"a": 5.0, "b": 1.0}), Limits(2, 2.0, 6.0, {"a": 4.0, "b": 2.0})
    assert one.best(other) == Limits(2, 3.0, 6.0, {"a": 5.0, "b": 2.0})


def test_limits_of_this_machine_are_rates() -> None:
    for isa in _native.supported_isas():
        ways = {way for way, _ in _native.int8_rates(isa, [0], 1000, 1)}
        assert ("dpbusd, 512 bits" in ways) == isa.startswith("avx512")
        limits = measure_limits(isa, 1, read_bytes=1 << 20)
        assert limits.threads == 1
        assert min(limits.read, limits.fp32, limits.best_int8) > 1e6


def test_more_threads_than_processors_are_refused() -> None:
    processors = len(os.sched_getaffinity(0))
    MachineMeter(Setting("it", processors, "portable"))
    with pytest.raises(ConfigError, match=f"--threads {processors} or fewer"):
        MachineMeter(Setting("it", processors + 1, "portable"))
