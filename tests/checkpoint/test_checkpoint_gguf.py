"""The GGUF reader: everything a good file says, and a named refusal for every bad one (case 15)."""

from __future__ import annotations

import os
import re
import struct

import numpy as np
import pytest

from rigs.gguf_writer import GgufTensor, Typed, gguf_bytes, string_bytes, value_bytes, write_gguf
from rooftree.checkpoint.formats import FORMATS, is_quantized, quantize
from rooftree.checkpoint.gguf import TENSOR_TYPES, TYPE_NAMES, read_gguf
from rooftree.errors import ModelError

METADATA = {
    "general.architecture": "llama",
    "u8": Typed("u8", 250),
    "i8": Typed("i8", -5),
    "u16": Typed("u16", 60_000),
    "i16": Typed("i16", -30_000),
    "u32": 4_000_000_000,
    "i32": Typed("i32", -2_000_000_000),
    "u64": Typed("u64", 2**63 + 1),
    "i64": Typed("i64", -(2**62)),
    "f32": 0.5,
    "f64": Typed("f64", 0.1),
    "yes": True,
    "no": False,
    "text": "grüße 🌳",
    "strings": ["a", "", "née"],
    "no strings": [],
    "numbers": Typed("i32", [3, -1, 0]),
    "flags": [True, False],
    "fractions": [0.25, 2.0],
}


def tensors(seed=0):
    rng = np.random.default_rng(seed)
    kinds = {1: "F16", 0: "F32", 2: "Q4_0", 30: "BF16", 3: "Q4_1", 8: "Q8_0", 6: "Q5_0", 7: "Q5_1"}
    kinds |= {12: "Q4_K", 14: "Q6_K", 13: "Q5_K"}
    shapes = {name: (3, FORMATS[name].block if is_quantized(name) else 32) for name in kinds.values()}
    return [
        GgufTensor(
            f"t.{name}", shapes[name], type_id, quantize(name, rng.standard_normal(shapes[name])).tobytes()
        )
        for type_id, name in kinds.items()
    ]


def refusal(path, data):
    """The message with which a file of these bytes is refused; it must name the file."""
    path.write_bytes(data)
    with pytest.raises(ModelError) as caught:
        read_gguf(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.gguf"


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [1, 8, 32, 64, 4096])
def test_everything_written_is_read(path, version, alignment):
    written = tensors()
    file = read_gguf(write_gguf(path, METADATA, written, version=version, alignment=alignment))
    expected = {key: value.value if isinstance(value, Typed) else value for key, value in METADATA.items()}
    if alignment != 32:
        expected["general.alignment"] = alignment
    assert file.version == version
    assert dict(file.metadata) == expected
    assert {key: type(value) for key, value in file.metadata.items()} == {
        key: type(value) for key, value in expected.items()
    }
    assert list(file.tensors) == [tensor.name for tensor in written]
    for tensor in written:
        read = file.tensors[tensor.name]
        assert (read.shape, read.dtype) == (tensor.shape, TENSOR_TYPES[tensor.type_id])
        assert read.data.tobytes() == tensor.data
        assert not read.data.flags.writeable
        assert str(path) in read.source
        assert tensor.name in read.source


def test_dimensions_are_stored_innermost_first(path):
    data = np.arange(2 * 3 * 4, dtype="<f4").tobytes()
    write_gguf(path, {}, [GgufTensor("t", (2, 3, 4), 0, data)])
    assert struct.pack("<QQQ", 4, 3, 2) in path.read_bytes()
    assert read_gguf(path).tensors["t"].shape == (2, 3, 4)


def test_tensors_may_lie_in_any_order_and_have_gaps_and_a_tail(path):
    one, two = b"\1" * 128, b"\2" * 128
    listed = [GgufTensor("late", (32,), 0, two, offset=256), GgufTensor("early", (32,), 0, one, offset=0)]
    data = gguf_bytes({}, listed)
    body = one + bytes(128) + two + bytes(77)
    path.write_bytes(data[: len(data) - 256] + body)
    file = read_gguf(path)
    assert file.tensors["late"].data.tobytes() == two
    assert file.tensors["early"].data.tobytes() == one


def test_a_file_cut_anywhere_is_refused(path):
    """Every length short of the whole: no crash, no bus error, no tensor beyond the end."""
    whole = gguf_bytes(METADATA, tensors())
    path.write_bytes(whole)
    assert read_gguf(path).tensors
    for length in reversed(range(len(whole))):
        os.truncate(path, length)
        with pytest.raises(ModelError, match=re.escape(str(path))) as caught:
            read_gguf(path)
        message = str(caught.value)
        assert any(word in message for word in ("cut short", "empty")), (length, message)


def test_a_damaged_byte_never_escapes_as_anything_but_a_model_error(path):
    """Any bits in the header: refused, or read without leaving the file."""
    whole = gguf_bytes(METADATA, tensors())
    body = sum(len(tensor.data) for tensor in tensors())
    rng = np.random.default_rng(3)
    refused = 0
    for _ in range(600):
        damaged = bytearray(whole)
        for place in rng.integers(0, len(whole) - body, rng.integers(1, 4)):
            damaged[place] = rng.choice([0, 1, 127, 128, 255, rng.integers(256)])
        path.write_bytes(damaged)
        try:
            file = read_gguf(path)
        except ModelError:
            refused += 1
        else:
            assert all(tensor.data.sum() >= 0 for tensor in file.tensors.values())
    assert 0 < refused < 600


def test_no_gguf_file(path):
    assert "begin with 'GGUF'" in refusal(path, b"PK\3\4" + bytes(100))
    assert "begin with 'GGUF'" in refusal(path, b"GGU" + bytes(100))
    assert "empty" in refusal(path, b"")


def test_what_is_no_file(tmp_path):
    with pytest.raises(ModelError, match="No such file"):
        read_gguf(tmp_path / "absent.gguf")
    with pytest.raises(ModelError, match="not a regular file"):
        read_gguf(tmp_path)


def test_big_endian_is_refused_by_name(path):
    for version in (2, 3):
        data = b"GGUF" + struct.pack(">IQQ", version, 0, 0)
        assert "big-endian GGUF file" in refusal(path, data)


@pytest.mark.parametrize("version", [0, 1, 4, 2**31])
def test_other_versions_are_refused_by_number(path, version):
    assert f"version {version}" in refusal(path, b"GGUF" + struct.pack("<IQQ", version, 0, 0) + bytes(64))


def test_counts_that_cannot_fit_are_refused_before_they_are_believed(path):
    for counts in ((2**63, 0), (0, 2**63), (2**40, 2**40), (1000, 0)):
        message = refusal(path, b"GGUF" + struct.pack("<IQQ", 3, *counts) + bytes(64))
        assert "cannot" in message
        assert "fit" in message


def header(pairs=b"", count=1, records=b"", tensors=0):
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, count) + pairs + records + bytes(256)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (struct.pack("<IQ", 8, 2**62), "cut short"),
        (struct.pack("<IIQ", 9, 8, 2**61), "cut short"),
        (struct.pack("<IIQ", 9, 4, 2**62), "cut short"),
        (struct.pack("<IIQ", 9, 8, 3) + string_bytes("ok") + struct.pack("<Q", 2**63), "at string 1 of 3"),
        (struct.pack("<IIQ", 9, 8, 2) + string_bytes("ok") + string_bytes(b"\xff"), "string 1 .* not UTF-8"),
        (struct.pack("<IIQ", 9, 9, 1) + bytes(12), "array of arrays"),
        (struct.pack("<I", 13), "type 13"),
        (struct.pack("<IIQ", 9, 99, 1), "type 99"),
        (struct.pack("<IB", 7, 2), "0 or 1"),
        (struct.pack("<I", 8) + string_bytes(b"caf\xe9"), "not UTF-8"),
    ],
)
def test_a_bad_value_names_its_key(path, value, problem):
    message = refusal(path, header(string_bytes("some.key") + value))
    assert "metadata key 'some.key'" in message
    assert re.search(problem, message), message


def test_a_key_or_tensor_that_appears_twice(path):
    pair = string_bytes("k") + value_bytes(1)
    assert "'k' appears twice" in refusal(path, header(pair + pair, count=2))
    twice = [GgufTensor("t", (32,), 0, bytes(128))] * 2
    assert "tensor 't': appears twice" in refusal(path, gguf_bytes({}, twice))


@pytest.mark.parametrize("alignment", [0, 3, 48, Typed("i32", -32), 32.0, "32"])
def test_alignment_must_be_a_power_of_two(path, alignment):
    assert "general.alignment" in refusal(path, gguf_bytes({"general.alignment": alignment}, tensors()))


@pytest.mark.parametrize(
    ("type_id", "name"),
    [
        *((9, "Q8_1"), (10, "Q2_K"), (11, "Q3_K"), (15, "Q8_K"), (20, "IQ4_NL"), (23, "IQ4_XS"), (24, "I8")),
        *((29, "IQ1_M"), (35, "TQ2_0"), (39, "MXFP4"), (40, "NVFP4")),
    ],
)
def test_known_types_that_are_not_supported_are_named(path, type_id, name):
    message = refusal(path, gguf_bytes({}, [GgufTensor("blk.0.ffn_up.weight", (256,), type_id, bytes(512))]))
    assert f"tensor 'blk.0.ffn_up.weight': is stored as {name} (type id {type_id})" in message
    assert "supported are F32, F16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, BF16" in message


@pytest.mark.parametrize("type_id", [4, 5, 99, 2**32 - 1])
def test_unknown_types_are_named_by_number(path, type_id):
    message = refusal(path, gguf_bytes({}, [GgufTensor("odd", (32,), type_id, bytes(128))]))
    assert "tensor 'odd'" in message
    assert f"unknown type (type id {type_id})" in message


def test_type_names_do_not_hide_supported_types():
    assert all(TYPE_NAMES.get(type_id, name) == name for type_id, name in TENSOR_TYPES.items())
    assert TYPE_NAMES[29] == "IQ1_M"


@pytest.mark.parametrize("shape", [(), (1, 1, 1, 1, 32), (0, 32)])
def test_shapes_that_cannot_be(path, shape):
    message = refusal(path, gguf_bytes({}, [GgufTensor("t", shape, 0, bytes(128))]))
    assert "tensor 't'" in message


def test_a_shape_beyond_the_file(path):
    for shape in ((2**40, 32), (2**62, 2**62, 2**62, 32), (33,)):
        message = refusal(path, gguf_bytes({}, [GgufTensor("big", shape, 0, bytes(128))]))
        assert "tensor 'big'" in message
        assert "cut short" in message


@pytest.mark.parametrize(
    ("type_id", "block", "columns"), [(2, 32, 48), (6, 32, 16), (7, 32, 33), (12, 256, 32), (14, 256, 384)]
)
def test_a_quantised_row_must_fill_its_blocks(path, type_id, block, columns):
    message = refusal(path, gguf_bytes({}, [GgufTensor("t", (2, columns), type_id, bytes(4096))]))
    assert "tensor 't'" in message
    assert f"multiple of {block}" in message


def test_offsets_must_be_aligned_inside_the_file_and_apart(path):
    def with_offset(offset):
        first = GgufTensor("a", (32,), 0, bytes(128))
        return gguf_bytes({}, [first, GgufTensor("b", (32,), 0, bytes(128), offset=offset)])

    assert "not a multiple of 32" in refusal(path, with_offset(130))
    assert "'a' and 'b' overlap" in refusal(path, with_offset(96))
    assert "'a' and 'b' overlap" in refusal(path, with_offset(0))
    assert "tensor 'b': the file is cut short" in refusal(path, with_offset(160))
    assert "tensor 'b': the file is cut short" in refusal(path, with_offset(2**63))
