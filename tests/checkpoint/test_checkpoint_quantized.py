"""FP8 and FP4 directories as they are published: every element against its definition; refusals."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rigs.hf_writer import Entry
from rigs.models import random_weights, tiny_spec
from rigs.quantized_writer import (
    SCHEMES,
    float_entry,
    nvfp4_modelopt,
    quantized_entries,
    write_quantized_model,
)
from rooftree.checkpoint.base import Tensor
from rooftree.checkpoint.formats import dequantize, tensor_bytes
from rooftree.checkpoint.hf_quantization import QuantizedStorage
from rooftree.checkpoint.open import open_checkpoint
from rooftree.checkpoint.safetensors import StoredTensor
from rooftree.checkpoint.stored_weights import model_tensors
from rooftree.errors import ModelError

# Neither 192 nor 320 fills blocks of 128.
SPEC = tiny_spec(
    "llama",
    vocab_size=300,
    hidden_size=192,
    intermediate_size=320,
    num_heads=12,
    num_kv_heads=4,
    num_layers=1,
)
WEIGHTS = random_weights(SPEC)
QUERY = "model.layers.0.self_attn.q_proj"
DOWN = "model.layers.0.mlp.down_proj"
STORED_AS = {"nvfp4": "NVFP4", "mxfp4": "MXFP4"}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def e4m3(code):
    sign, exponent, mantissa = (-1.0 if code >> 7 else 1.0), code >> 3 & 15, code & 7
    if code & 127 == 127:
        return math.nan
    return sign * (2.0 ** (exponent - 7) * (1 + mantissa / 8) if exponent else 2.0**-6 * mantissa / 8)


CODES = np.array([e4m3(code) for code in range(256)])


def numbers(entry):
    """A stored tensor's numbers in double precision, in its shape."""
    data = np.frombuffer(entry.data, np.uint8)
    if entry.dtype == "F8_E8M0":
        values = 2.0 ** (data.astype(np.float64) - 127)
    elif entry.dtype == "F8_E4M3":
        values = CODES[data]
    elif entry.dtype == "BF16":
        values = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        values = data.view({"F32": np.float32, "F16": np.float16, "U8": np.uint8}[entry.dtype])
    return values.astype(np.float64).reshape(entry.shape)


def defined(base, entries, shape):
    """What a module's entries stand for: products in double precision (exact), rounded to float32 once."""
    n, k = shape
    own = {name.removeprefix(f"{base}.weight"): entry for name, entry in entries.items() if base in name}
    if "_blocks" in own or "_packed" in own or own[""].dtype == "U8":
        packed = np.frombuffer((own.get("_blocks") or own.get("_packed") or own[""]).data, np.uint8)
        elements = E2M1[np.stack((packed & 15, packed >> 4), axis=-1)].reshape(n, k)
        scale = own.get("_scales") or own["_scale"]
        scales = numbers(scale).reshape(n, -1)
        if scale.dtype == "U8":
            return (elements * np.repeat(2.0 ** (scales - 127), 32, axis=1)).astype(np.float32)
        if "_scale_2" in own:
            factor = numbers(own["_scale_2"]).item()
        else:
            factor = float(np.float32(1) / np.float32(numbers(own["_global_scale"]).item()))
        return (elements * np.repeat(scales, 16, axis=1) * factor).astype(np.float32)
    scales = numbers(own["_scale_inv"] if "_scale_inv" in own else own["_scale"])
    if scales.size > 1 and scales.shape[0] != n:
        scales = scales.reshape(-(-n // 128), -(-k // 128))
        scales = np.repeat(np.repeat(scales, 128, axis=0)[:n], 128, axis=1)[:, :k]
    elif scales.size > 1:
        scales = scales.reshape(n, 1)
    return (numbers(own[""]) * scales).astype(np.float32)


def entries_of(scheme, ignore=()):
    return quantized_entries(WEIGHTS, scheme, ignore)


def opened(folder, entries, config, **options):
    return open_checkpoint(str(write_quantized_model(folder, SPEC, entries, config, **options)))


def read_all(folder, entries, config):
    return [tensor.data for tensor in opened(folder, entries, config).tensors.values()]


def refusal(folder, entries, config):
    with pytest.raises(ModelError) as caught:
        read_all(folder, entries, config)
    assert str(folder) in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_element_is_the_defined_one(tmp_path, scheme, shards):
    entries = entries_of(scheme)
    checkpoint = opened(tmp_path, entries, SCHEMES[scheme].config, shards=shards)
    assert list(checkpoint.tensors) == list(WEIGHTS)
    kind = next((dtype for part, dtype in STORED_AS.items() if part in scheme), "F8_E4M3")
    for name, tensor in checkpoint.tensors.items():
        assert (tensor.name, tensor.shape) == (name, WEIGHTS[name].shape)
        assert isinstance(tensor, Tensor)
        assert tensor.num_bytes == tensor.data.nbytes == tensor_bytes(tensor.dtype, tensor.shape)
        assert str(tmp_path) in tensor.source
        if tensor.dtype == "BF16":
            assert tensor.scales is None
            continue
        assert tensor.dtype == kind
        values = dequantize(tensor)
        expected = defined(name.removesuffix(".weight"), entries, tensor.shape)
        np.testing.assert_array_equal(values, expected, err_msg=name)
        # Near the weights, so that nothing is permuted or scaled twice.
        error = np.abs(values - WEIGHTS[name]).max() / np.abs(WEIGHTS[name]).max()
        assert error < (0.07 if kind == "F8_E4M3" else 0.26), name
    floats = {name for name, tensor in checkpoint.tensors.items() if tensor.dtype == "BF16"}
    assert floats == {name for name, values in WEIGHTS.items() if values.ndim == 1 or "layers" not in name}


@pytest.mark.parametrize("scheme", ["ct-channel", "fp8-block", "modelopt-nvfp4", "ct-mxfp4"])
def test_modules_that_are_left_alone_stay_floats(tmp_path, scheme):
    checkpoint = opened(tmp_path, entries_of(scheme, [QUERY, DOWN]), SCHEMES[scheme].config)
    floats = {name for name, tensor in checkpoint.tensors.items() if tensor.dtype == "BF16"}
    assert {f"{QUERY}.weight", f"{DOWN}.weight", "lm_head.weight"} <= floats
    assert "model.layers.0.mlp.up_proj.weight" not in floats


@pytest.mark.parametrize("code", range(256))
def test_all_codes_of_an_fp8_weight(code):
    weight = StoredTensor("m.weight", (1, 1), "F8_E4M3", np.array([code], np.uint8), "file: 'm.weight'")
    scale = StoredTensor("m.weight_scale", (), "F32", np.array([3.0], "<f4").view(np.uint8), "file: scale")
    stored = {"m.weight": weight, "m.weight_scale": scale}
    (tensor,) = model_tensors(stored, QuantizedStorage("fp8", frozenset({"F8_E4M3"}))).values()
    if code & 127 == 127:
        with pytest.raises(ModelError, match=r"^file: 'm.weight': holds NaN"):
            dequantize(tensor)
    else:
        assert dequantize(tensor).item() == e4m3(code) * 3


def test_scales_of_the_kv_cache_are_not_used(tmp_path):
    entries = entries_of("modelopt-fp8")
    for name in ("k_proj.k_scale", "v_proj.v_scale", "k_scale", "v_scale"):
        entries[f"model.layers.0.self_attn.{name}"] = float_entry(np.array(0.5))
    checkpoint = opened(tmp_path, entries, SCHEMES["modelopt-fp8"].config)
    assert list(checkpoint.tensors) == list(WEIGHTS)


def test_formats_may_be_mixed(tmp_path):
    entries = entries_of("modelopt-fp8", [DOWN])
    entries.pop(f"{DOWN}.weight")
    entries |= nvfp4_modelopt(DOWN, WEIGHTS[f"{DOWN}.weight"])
    layers = {QUERY: {"quant_algo": "FP8"}, DOWN: {"quant_algo": "NVFP4", "group_size": 16}}
    config = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    checkpoint = opened(tmp_path, entries, config)
    assert checkpoint.tensors[f"{QUERY}.weight"].dtype == "F8_E4M3"
    assert checkpoint.tensors[f"{DOWN}.weight"].dtype == "NVFP4"


def test_joining_scales_and_elements_takes_no_second_copy():
    packed = StoredTensor("m.weight_packed", (4096, 512), "U8", np.zeros(4096 * 512, np.uint8), "packed")
    scale = StoredTensor("m.weight_scale", (4096, 32), "U8", np.zeros(4096 * 32, np.uint8), "scale")
    stored = {tensor.name: tensor for tensor in (packed, scale)}
    (tensor,) = model_tensors(stored, QuantizedStorage("x", frozenset({"MXFP4"}))).values()
    tracemalloc.start()
    try:
        data = tensor.data
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert data.nbytes == tensor.num_bytes
    assert peak < 1.3 * data.nbytes


# Refusals


def test_quantised_tensors_need_an_announcement(tmp_path):
    message = refusal(tmp_path, entries_of("ct-channel"), None)
    assert "type 'F8_E4M3' is not supported" in message
    assert "quantization_config" in message
    message = refusal(tmp_path, entries_of("ct-channel"), SCHEMES["ct-nvfp4"].config)
    assert f"tensor '{QUERY}.weight': is stored as F8_E4M3" in message
    assert "compressed-tensors configuration announces NVFP4" in message
    message = refusal(tmp_path, entries_of("ct-nvfp4"), SCHEMES["ct-mxfp4"].config)
    assert f"tensor '{QUERY}.weight_packed': is stored as NVFP4" in message


@pytest.mark.parametrize(
    ("scheme", "part"),
    [
        ("ct-channel", "weight_scale"),
        ("fp8-block", "weight_scale_inv"),
        ("modelopt-nvfp4", "weight_scale_2"),
        ("modelopt-nvfp4", "weight_scale"),
        ("ct-nvfp4", "weight_global_scale"),
        ("ct-mxfp4", "weight_scale"),
        ("mxfp4", "weight_scales"),
    ],
)
def test_a_missing_scale_is_named(tmp_path, scheme, part):
    entries = entries_of(scheme)
    del entries[f"{QUERY}.{part}"]
    message = refusal(tmp_path, entries, SCHEMES[scheme].config)
    assert f"{QUERY}.weight" in message
    assert f"its scale is missing ({QUERY}.weight_scale" in message or f"({QUERY}.{part})" in message


def test_two_scales_or_two_weights_contradict_each_other(tmp_path):
    entries = entries_of("fp8-block")
    entries[f"{QUERY}.weight_scale"] = entries[f"{QUERY}.weight_scale_inv"]
    assert "more than one of its scales" in refusal(tmp_path, entries, SCHEMES["fp8-block"].config)
    entries = entries_of("ct-mxfp4")
    entries[f"{QUERY}.weight"] = float_entry(WEIGHTS[f"{QUERY}.weight"])
    assert "in quantised form too" in refusal(tmp_path, entries, SCHEMES["ct-mxfp4"].config)


def test_a_scale_beside_a_float_weight_is_refused(tmp_path):
    entries = entries_of("ct-channel", [QUERY])
    entries[f"{QUERY}.weight_scale"] = float_entry(np.ones((192, 1)))
    message = refusal(tmp_path, entries, SCHEMES["ct-channel"].config)
    assert f"tensor '{QUERY}.weight_scale'" in message


@pytest.mark.parametrize("shape", [(191,), (192, 2), (1, 192), (2, 3), (2, 2, 1), (1, 1, 2, 2)])
def test_fp8_scales_must_fit(tmp_path, shape):
    entries = entries_of("fp8-block")
    entries[f"{QUERY}.weight_scale_inv"] = float_entry(np.ones(shape))
    message = refusal(tmp_path, entries, SCHEMES["fp8-block"].config)
    assert f"tensor '{QUERY}.weight_scale_inv': has the shape {list(shape)}" in message
    assert "for a weight of [192, 192]" in message
    assert "[128, 128]" in message


@pytest.mark.parametrize(
    ("scheme", "part", "entry", "words"),
    [
        ("ct-channel", "weight_scale", Entry("I32", (192, 1), bytes(768)), "is I32; scales must be F32"),
        ("ct-channel", "weight_scale", float_entry(np.full((192, 1), np.inf)), "is not finite"),
        ("ct-channel", "weight_scale", float_entry(np.full((192, 1), np.nan)), "is not finite"),
        ("ct-channel", "weight", Entry("F8_E5M2", (192, 192), bytes(192 * 192)), "type 'F8_E5M2' is not"),
        ("ct-channel", "weight", Entry("F8_E4M3", (36864,), bytes(36864)), "only matrices may be"),
        ("ct-nvfp4", "weight_global_scale", float_entry(np.zeros(1)), "nothing can be divided"),
        ("ct-nvfp4", "weight_global_scale", float_entry(np.full(1, 1e-45)), "nothing can be divided"),
        ("ct-nvfp4", "weight_global_scale", float_entry(np.ones(2)), "must be one number"),
        ("ct-nvfp4", "weight_scale", Entry("F8_E4M3", (192, 6), bytes(192 * 6)), "needs [192, 12]"),
        ("ct-nvfp4", "weight_packed", Entry("U8", (192, 90), bytes(192 * 90)), "a multiple of 16"),
        ("ct-nvfp4", "weight_packed", Entry("I8", (192, 96), bytes(192 * 96)), "is I8 [192, 96]"),
        ("ct-nvfp4", "weight_packed", Entry("U8", (64, 96), bytes(64 * 96)), "a weight of [64, 192] needs"),
        ("ct-mxfp4", "weight_scale", Entry("F32", (192, 6), bytes(4608)), "is F32; scales of MXFP4"),
        ("ct-mxfp4", "weight_scale", Entry("U8", (192, 12), bytes(2304)), "needs [192, 6]"),
        ("ct-mxfp4", "weight_packed", Entry("U8", (18432,), bytes(18432)), "is U8 [18432]"),
        ("mxfp4", "weight_blocks", Entry("U8", (192, 6, 8), bytes(9216)), "blocks of MXFP4 must be"),
        ("mxfp4", "weight_blocks", Entry("U8", (), bytes(1)), "blocks of MXFP4 must be"),
        ("mxfp4", "weight_scales", Entry("U8", (192, 5), bytes(960)), "beside scales [192, 5]"),
        ("ct-nvfp4", "weight_scale", Entry("F8_E4M3", (192, 12), b"\x7f" * 2304), "holds NaN (code 0x7F"),
        ("ct-mxfp4", "weight_scale", Entry("U8", (192, 6), b"\xff" * 1152), "holds NaN (code 0xFF"),
        (
            "ct-channel",
            "weight",
            Entry("F8_E4M3", (192, 192), bytes(36863) + b"\xff"),
            "holds NaN (code 0x7F",
        ),
    ],
)
def test_what_cannot_be_a_quantised_weight_is_named(tmp_path, scheme, part, entry, words):
    entries = entries_of(scheme) | {f"{QUERY}.{part}": entry}
    message = refusal(tmp_path, entries, SCHEMES[scheme].config)
    assert words in message
    assert f"tensor '{QUERY}.weight" in message


def test_a_weight_of_the_wrong_shape_is_refused_as_any_other(tmp_path):
    entries = entries_of("ct-mxfp4")
    entries |= SCHEMES["ct-mxfp4"].entries(QUERY, np.ones((64, 192), np.float32))
    assert "has the shape [64, 192]; the configuration needs [192, 192]" in refusal(
        tmp_path, entries, SCHEMES["ct-mxfp4"].config
    )


PARTS = ["weight", "weight_packed", "weight_blocks", "weight_scales", "weight_scale", "weight_scale_inv"]
PARTS += ["weight_scale_2", "weight_global_scale", "input_scale", "bias"]
SIZES = st.sampled_from([0, 1, 2, 4, 6, 8, 16, 32])
ELEMENT_BYTES = {"U8": 1, "F8_E4M3": 1, "F8_E8M0": 1, "F32": 4, "BF16": 2, "I32": 4, "F8_E5M2": 1}


@st.composite
def stored_parts(draw):
    """Some tensors of one module, of any types and shapes."""
    tensors = {}
    for part in draw(st.lists(st.sampled_from(PARTS), min_size=1, max_size=4, unique=True)):
        kind = draw(st.sampled_from(list(ELEMENT_BYTES)))
        shape = tuple(draw(st.lists(SIZES, max_size=4)))
        data = np.full(math.prod(shape) * ELEMENT_BYTES[kind], draw(st.sampled_from([0, 1, 0x3F])), np.uint8)
        tensors[f"m.{part}"] = StoredTensor(f"m.{part}", shape, kind, data, f"file: {part}")
    return tensors


@given(stored_parts(), st.sampled_from([None, (2, 4)]))
def test_any_parts_are_tensors_or_a_model_error(stored, block):
    storage = QuantizedStorage("any", frozenset({"F8_E4M3", "MXFP4", "NVFP4"}), block)
    tensors, message = {}, "file: "
    try:
        tensors = model_tensors(stored, storage)
    except ModelError as error:
        message = str(error)
    assert message.startswith("file: ")
    for tensor in tensors.values():
        assert tensor.data.nbytes == tensor.num_bytes == tensor_bytes(tensor.dtype, tensor.shape)
        assert dequantize(tensor).shape == tensor.shape
