"""Quantising while loading: every tensor as if quantised by itself, one at a time, the rest untouched."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest

from rigs.models import FAMILIES, random_weights, tiny_spec, write_gguf_model, write_hf_model
from rigs.quantized_writer import SCHEMES as PUBLISHED
from rigs.quantized_writer import quantized_entries, write_quantized_model
from rooftree.checkpoint.base import Checkpoint, Tensor, TextAssets
from rooftree.checkpoint.formats import dequantize, quantize, tensor_bytes
from rooftree.checkpoint.layout import EMBEDDING, HEAD
from rooftree.checkpoint.open import open_checkpoint
from rooftree.checkpoint.quantization import Quantization
from rooftree.checkpoint.quantize_on_load import SCHEMES, quantized
from rooftree.errors import ConfigError

SPEC = tiny_spec(vocab_size=300)


def hf_checkpoint(folder, dtype="BF16", spec=SPEC):
    return open_checkpoint(str(write_hf_model(folder, spec, random_weights(spec), dtype=dtype)))


def test_the_names_are_those_of_the_option():
    assert tuple(SCHEMES) == get_args(Quantization)
    assert all(name.upper() == dtype for name, dtype in SCHEMES.items())


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_tensors_are_what_quantising_them_whole_gives(tmp_path, scheme, dtype):
    stored = hf_checkpoint(tmp_path, dtype)
    result = quantized(stored, scheme)
    assert list(result.tensors) == list(stored.tensors)
    assert result.notices == ()
    for name, tensor in result.tensors.items():
        before = stored.tensors[name]
        blocks = scheme != "bf16"
        target = "Q8_0" if blocks and name in (EMBEDDING, HEAD) else SCHEMES[scheme]
        if before.shape[1:] == () or before.dtype == target:
            assert tensor is before
            continue
        assert tensor.dtype == target
        assert (tensor.name, tensor.shape, tensor.source) == (before.name, before.shape, before.source)
        assert tensor.data.tobytes() == quantize(tensor.dtype, dequantize(before)).tobytes()
        assert tensor.num_bytes == tensor_bytes(tensor.dtype, tensor.shape) == tensor.data.nbytes
        assert tensor.scales is None
    assert (result.weight_bytes < stored.weight_bytes) == (SCHEMES[scheme] != "BF16" or dtype == "F32")


@pytest.mark.parametrize("scheme", ["ct-tensor", "ct-channel", "fp8-block"])
def test_fp8_weights_too(tmp_path, scheme):
    spec = tiny_spec(vocab_size=300, hidden_size=192, intermediate_size=320, num_heads=12, num_kv_heads=4)
    entries = quantized_entries(random_weights(spec), scheme)
    stored = open_checkpoint(str(write_quantized_model(tmp_path, spec, entries, PUBLISHED[scheme].config)))
    result = quantized(stored, "q4_1")
    for name, tensor in result.tensors.items():
        if len(tensor.shape) == 2:
            expected = quantize(tensor.dtype, dequantize(stored.tensors[name]))
            assert tensor.data.tobytes() == expected.tobytes(), name
    assert {tensor.dtype for tensor in result.tensors.values()} == {"Q4_1", "Q8_0", "BF16"}


@pytest.mark.parametrize("family", FAMILIES)
def test_gguf_weights_in_half_split_order(tmp_path, family):
    spec = tiny_spec(family)
    weights = random_weights(spec)
    stored = open_checkpoint(str(write_gguf_model(tmp_path / "m.gguf", spec, weights, dtype="F32")))
    for name, tensor in quantized(stored, "q8_0").tensors.items():
        if len(tensor.shape) == 2:
            assert tensor.data.tobytes() == quantize("Q8_0", weights[name]).tobytes(), name


def test_a_large_tensor_is_converted_in_pieces():
    """Rows of more than one piece, the last one short, scales by blocks that the pieces do not respect."""
    values = np.random.default_rng(0).standard_normal((1001, 1024)).astype(np.float32)
    whole = Tensor("x.weight", values.shape, "F32", quantize("F32", values), "memory")
    checkpoint = Checkpoint("m", "memory", "safetensors", SPEC, {"x.weight": whole}, TextAssets())
    (result,) = quantized(checkpoint, "q5_1").tensors.values()
    assert result.data.tobytes() == quantize("Q5_1", values).tobytes()


def test_rows_that_do_not_fill_blocks_stay_with_a_notice(tmp_path):
    spec = tiny_spec(vocab_size=300, intermediate_size=80)
    stored = hf_checkpoint(tmp_path, spec=spec)
    result = quantized(stored, "q4_0")
    down = [name for name in stored.tensors if "down_proj" in name]
    assert all(result.tensors[name] is stored.tensors[name] for name in down)
    assert result.tensors["model.layers.0.mlp.up_proj.weight"].dtype == "Q4_0"
    (notice,) = result.notices
    assert notice == (
        f"--quantization q4_0 leaves 2 weights ({down[0]}, ...) as BF16: their rows do not fill blocks of 32."
    )


def test_what_is_quantised_already_stays_with_a_notice(tmp_path):
    mixed = {name: "Q4_1" for name in random_weights(SPEC) if "up_proj" in name}
    path = write_gguf_model(tmp_path / "m.gguf", SPEC, random_weights(SPEC), dtype=mixed)
    stored = replace(open_checkpoint(str(path)), notices=("before.",))
    result = quantized(stored, "q8_0")
    assert result.tensors["model.layers.0.mlp.up_proj.weight"].dtype == "Q4_1"
    assert result.tensors["model.layers.0.mlp.gate_proj.weight"].dtype == "Q8_0"
    assert result.notices[0] == "before."
    assert "leaves 2 weights (model.layers.0.mlp.up_proj.weight, ...) as Q4_1" in result.notices[1]


def test_a_model_without_float_weights_is_refused(tmp_path):
    path = write_gguf_model(tmp_path / "m.gguf", SPEC, random_weights(SPEC), dtype="Q4_1")
    with pytest.raises(ConfigError, match=r"no weight of m can be .* as Q4_1: they are"):
        quantized(open_checkpoint(str(path)), "q8_0")


@pytest.mark.parametrize("scheme", ["q8_0", "q4_0"])
@pytest.mark.parametrize("dtype", ["F32", "BF16"])
def test_memory_is_one_tensor(tmp_path, scheme, dtype):
    """Loading all one by one, as an executor does: the results, and never more than a float tensor beside."""
    spec = tiny_spec(vocab_size=6000, hidden_size=512, intermediate_size=1024, num_heads=8, num_layers=1)
    stored = hf_checkpoint(tmp_path, dtype, spec)
    tracemalloc.start()
    try:
        results = [tensor.data for tensor in quantized(stored, scheme).tensors.values()]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    largest = max(4 * tensor.num_elements for tensor in stored.tensors.values())
    outputs = sum(data.nbytes for data in results)
    assert peak <= 1.3 * largest + outputs
    # In pieces, far less than even one tensor in float32.
    assert peak <= outputs + largest
