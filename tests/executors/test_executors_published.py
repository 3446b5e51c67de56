"""Published FP8 and FP4 directories on the native kernels, against the reference and against themselves.

FP8 weights meet float inputs and are held to the bound of float weights; FP4 weights meet int8 inputs.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from executor_rig import ISAS, Driver, make_executor, random_tokens, rounds_to_bf16, spread_error
from hypothesis import given, settings
from hypothesis import strategies as st

from rigs.models import random_weights, tiny_spec
from rigs.quantized_writer import (
    SCHEMES,
    Scheme,
    compressed_config,
    float_weights,
    fp8_weight,
    quantized_entries,
    write_quantized_model,
)
from rooftree.checkpoint.base import Checkpoint
from rooftree.checkpoint.open import open_checkpoint
from rooftree.engine.executors.reference import ReferenceExecutor
from rooftree.errors import ModelError

FLOAT_BOUND = 2e-6
BF16_BOUND = 5e-3
INT8_BOUND = 3e-2

# Neither 192 nor 320 fills blocks of 128 rows or columns.
SPEC = tiny_spec(
    "qwen3", vocab_size=300, hidden_size=192, intermediate_size=320, num_heads=6, num_kv_heads=2, head_dim=32
)
WEIGHTS = random_weights(SPEC)
TOKENS = random_tokens(70, 300)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The checkpoint of a scheme, written once."""

    @cache
    def open_scheme(scheme: str) -> Checkpoint:
        folder = tmp_path_factory.mktemp(scheme)
        entries = quantized_entries(WEIGHTS, scheme)
        return open_checkpoint(str(write_quantized_model(folder, SPEC, entries, SCHEMES[scheme].config)))

    return open_scheme


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_published_weights_give_the_logits_of_the_reference(opened: Any, scheme: str, isa: str):
    options = {"kv_cache_dtype": "fp32"}
    native = Driver(make_executor(opened(scheme), isa=isa, **options))
    reference = Driver(make_executor(opened(scheme), ReferenceExecutor, **options))
    got, expected = (driver.read_each(TOKENS, 7, range(5)) for driver in (native, reference))
    # What such checkpoints leave unquantised, the head among it, is BF16.
    bound = BF16_BOUND if rounds_to_bf16("BF16", isa) else FLOAT_BOUND
    assert spread_error(got, expected) < (INT8_BOUND if "fp4" in scheme else bound)


BLOCKS = 30
EACH_KIND = ["ct-channel", "fp8-block", "modelopt-nvfp4", "ct-mxfp4"]
LENGTHS = [1, 17, 33, 70]


@pytest.mark.parametrize("scheme", EACH_KIND)
@settings(deadline=None, max_examples=6)
@given(isa=st.sampled_from(ISAS), threads=st.sampled_from([1, 2]), data=st.data())
def test_published_weights_keep_the_equality_contract(
    opened: Any, scheme: str, isa: str, threads: int, data: st.DataObject
):
    """Requests that advance together, by any chunks, on any blocks: the bits of each alone on one thread."""
    alone = Driver(make_executor(opened(scheme), isa=isa))
    expected = [alone.read(TOKENS[:length], [], range(5)) for length in LENGTHS]
    driver = Driver(make_executor(opened(scheme), isa=isa, threads=threads, num_blocks=BLOCKS))
    blocks = data.draw(st.permutations(range(BLOCKS)))
    feeds = [driver.feed(TOKENS[:length], blocks[5 * i : 5 * i + 5]) for i, length in enumerate(LENGTHS)]
    got: dict[str, np.ndarray] = {}
    while len(got) < len(feeds):
        running = [feed for feed in feeds if feed.request_id not in got]
        order = data.draw(st.permutations(running))
        parts = [(feed, data.draw(st.integers(1, len(feed.tokens) - feed.computed))) for feed in order]
        driver.step(parts)
        got |= driver.logits
    for feed, logits in zip(feeds, expected, strict=True):
        assert np.array_equal(got[feed.request_id], logits)


def test_nvfp4_rows_that_fill_no_block_of_inputs_are_refused(tmp_path: Path):
    """By both executors' door: the int8 inputs of a row come in blocks of 32, NVFP4's own are of 16."""
    spec = tiny_spec("llama", intermediate_size=80)
    entries = quantized_entries(random_weights(spec), "ct-nvfp4")
    folder = write_quantized_model(tmp_path, spec, entries, SCHEMES["ct-nvfp4"].config)
    with pytest.raises(
        ModelError, match=r"down_proj.weight_packed': is NVFP4 with rows of 80 .* blocks of 32"
    ) as caught:
        open_checkpoint(str(folder))
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("columns", [32, 64, 96])
def test_fp8_scales_that_change_within_a_step_are_refused(
    tmp_path: Path, columns: int, monkeypatch: pytest.MonkeyPatch
):
    """Named by file and tensor, with what runs it all the same."""
    structure = float_weights(8, "block", block_structure=[64, columns])
    config = compressed_config("float-quantized", structure)

    def entries(base: str, values: np.ndarray) -> Any:
        return fp8_weight(base, values, (64, columns), lambda rows, columns: (rows, columns))

    monkeypatch.setitem(SCHEMES, "narrow", Scheme(entries, config))
    folder = write_quantized_model(tmp_path, SPEC, quantized_entries(WEIGHTS, "narrow"), config)
    checkpoint = open_checkpoint(str(folder))
    words = (
        rf"q_proj.weight': has a scale for every {columns} of 192 columns.*multiple of 128.*--quantization"
    )
    with pytest.raises(ModelError, match=words) as caught:
        make_executor(checkpoint)
    assert str(folder) in str(caught.value)
    assert len(Driver(make_executor(checkpoint, ReferenceExecutor)).read(TOKENS, [], range(5))) == 300
