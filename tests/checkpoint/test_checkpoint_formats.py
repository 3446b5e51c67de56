"""Every format against its definition, element by element."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rooftree.checkpoint.base import Tensor
from rooftree.checkpoint.formats import (
    FORMATS,
    dequantize,
    dequantize_bytes,
    is_quantized,
    quantize,
    row_bytes,
    tensor_bytes,
)

QUANTIZED = ("Q4_0", "Q4_1", "Q8_0")


def half(raw: bytes) -> np.float32:
    return np.float32(struct.unpack("<e", raw)[0])


def nibble(packed: bytes, index: int) -> int:
    return packed[index] & 15 if index < 16 else packed[index - 16] >> 4


def q4_0(block: bytes) -> list[np.float32]:
    return [np.float32(nibble(block[2:], i) - 8) * half(block[:2]) for i in range(32)]


def q4_1(block: bytes) -> list[np.float32]:
    scale, low = half(block[:2]), half(block[2:4])
    return [np.float32(nibble(block[4:], i)) * scale + low for i in range(32)]


def q8_0(block: bytes) -> list[np.float32]:
    return [np.float32(struct.unpack("<b", block[2 + i : 3 + i])[0]) * half(block[:2]) for i in range(32)]


DEFINITIONS = {
    "F32": (4, lambda raw: [np.float32(struct.unpack("<f", raw)[0])]),
    "F16": (2, lambda raw: [half(raw)]),
    "BF16": (2, lambda raw: [np.float32(struct.unpack("<f", b"\0\0" + raw)[0])]),
    "Q4_0": (18, q4_0),
    "Q4_1": (20, q4_1),
    "Q8_0": (34, q8_0),
}


@pytest.mark.parametrize("dtype", DEFINITIONS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_dequantisation_is_the_definition_for_any_bits(dtype):
    size, definition = DEFINITIONS[dtype]
    raw = np.random.default_rng(1).integers(0, 256, 400 * size, dtype=np.uint8).tobytes()
    expected = [x for at in range(0, len(raw), size) for x in definition(raw[at : at + size])]
    actual = dequantize_bytes(dtype, np.frombuffer(raw, np.uint8))
    np.testing.assert_array_equal(actual, np.array(expected, np.float32))


@pytest.mark.parametrize("dtype", DEFINITIONS)
def test_a_tensor_keeps_its_shape_and_its_file(dtype):
    shape = (3, 2, 64)
    values = np.random.default_rng(2).standard_normal(shape)
    data = quantize(dtype, values)
    data.flags.writeable = False
    tensor = Tensor("t", shape, dtype, data, "here")
    result = dequantize(tensor)
    assert result.shape == shape
    assert result.dtype == np.float32
    assert result.flags.writeable
    assert tensor.num_bytes == tensor_bytes(dtype, shape) == data.nbytes
    assert tensor.num_elements == 384


def test_formats_read_from_any_address():
    raw = np.zeros(1 + 4 * 8, np.uint8)
    raw[1:] = quantize("F32", np.arange(8.0))
    np.testing.assert_array_equal(dequantize_bytes("F32", raw[1:]), np.arange(8))


def test_sizes():
    assert {name: FORMATS[name].block_bytes for name in FORMATS} == {
        name: size for name, (size, _) in DEFINITIONS.items()
    }
    assert [name for name in FORMATS if is_quantized(name)] == list(QUANTIZED)
    assert row_bytes("Q4_1", 576) == 360
    assert tensor_bytes("F16", ()) == 2
    assert tensor_bytes("F32", (0, 5)) == 0


@pytest.mark.parametrize("dtype", QUANTIZED)
def test_a_row_that_is_no_whole_number_of_blocks_is_refused(dtype):
    with pytest.raises(ValueError, match=r"multiple of 32 .* not 48"):
        row_bytes(dtype, 48)
    with pytest.raises(ValueError, match="not 16"):
        quantize(dtype, np.zeros((2, 16)))


floats = st.floats(-1e4, 1e4, width=32)


@given(hnp.arrays(np.float32, (2, 64), elements=floats))
def test_quantising_keeps_every_value_within_half_a_step(values):
    blocks = values.reshape(-1, 32)
    largest = np.abs(blocks).max(axis=1, keepdims=True)
    spread = np.ptp(blocks, axis=1, keepdims=True)
    # Half a step, doubled for Q4_0's lopsided range (-8..7), plus the rounding of the fp16 scale and minimum.
    slack = largest * 2**-9 + 1e-3
    for dtype, bound in (("Q8_0", largest / 254), ("Q4_0", largest / 8), ("Q4_1", spread / 30)):
        error = np.abs(dequantize_bytes(dtype, quantize(dtype, values)).reshape(blocks.shape) - blocks)
        assert (error <= bound + slack).all(), dtype


def test_quantising_rounds_as_the_reference_does():
    """Q4_0 maps the first of the largest to -8, Q8_0 rounds halves away from zero, zeros stay zeros."""
    block = np.zeros(32, np.float32)
    block[3], block[5] = 4.0, -4.0
    raw = quantize("Q4_0", block).tobytes()
    assert half(raw[:2]) == -0.5
    assert (nibble(raw[2:], 3), nibble(raw[2:], 5), nibble(raw[2:], 0)) == (0, 15, 8)
    block[:] = 0
    block[:4] = 127, 0.5, -0.5, 1.5
    assert quantize("Q8_0", block)[2:6].view(np.int8).tolist() == [127, 1, -1, 2]
    block[:] = 0
    for dtype in QUANTIZED:
        assert not dequantize_bytes(dtype, quantize(dtype, block)).any()
    block[:] = 7
    raw = quantize("Q4_1", block).tobytes()
    assert (half(raw[:2]), half(raw[2:4])) == (0, 7)


def test_bf16_rounds_to_nearest_even_and_keeps_nan():
    bits = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7FFFFFFF, 0x7F800000], np.uint32)
    stored = quantize("BF16", bits.view(np.float32)).view(np.uint16)
    assert stored.tolist() == [0x3F80, 0x3F82, 0x3F81, 0x7FFF, 0x7F80]
    assert np.isnan(dequantize_bytes("BF16", stored.view(np.uint8))[3])
