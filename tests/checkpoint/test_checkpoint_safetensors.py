"""The safetensors reader and its index: good files are read, and every bad one is refused by name."""

from __future__ import annotations

import json
import os
import struct

import numpy as np
import pytest
from safetensors.numpy import save_file

from rigs.hf_writer import Entry, safetensors_bytes, write_safetensors
from rooftree.checkpoint.formats import dequantize
from rooftree.checkpoint.safetensors import read_folder, read_safetensors
from rooftree.checkpoint.stored_weights import model_tensors
from rooftree.errors import ModelError

TENSORS = {
    "b": Entry("F32", (2, 3), np.arange(6, dtype="<f4").tobytes()),
    "a": Entry("F16", (4,), np.arange(4, dtype="<f2").tobytes()),
    "c": Entry("BF16", (1, 2), b"\x80\x3f\x00\x40"),
}


def keep_all(name):
    return False


def read(path):
    return read_safetensors(path, keep_all)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.safetensors"


def refusal(path, data):
    path.write_bytes(data)
    with pytest.raises(ModelError) as caught:
        read(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def with_header(header, body=b"", length=None):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + body


def entry(dtype="F32", shape=(2,), span=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(span)}


def test_everything_written_is_read(path):
    path.write_bytes(safetensors_bytes(TENSORS, {"format": "pt"}))
    tensors = read(path)
    assert list(tensors) == ["b", "a", "c"]
    for name, written in TENSORS.items():
        assert (tensors[name].kind, tensors[name].shape) == written[:2]
        assert tensors[name].data.tobytes() == written.data
        assert not tensors[name].data.flags.writeable
        assert str(path) in tensors[name].source
    assert dequantize(model_tensors(tensors, None)["c"]).tolist() == [[1.0, 2.0]]


def test_the_librarys_own_files(path):
    arrays = {"x": np.random.default_rng(0).random((3, 5), np.float32), "y": np.float16([[1, 2]])}
    save_file(arrays, path)
    tensors = model_tensors(read(path), None)
    assert {name: dequantize(tensor).tolist() for name, tensor in tensors.items()} == {
        name: array.tolist() for name, array in arrays.items()
    }


def test_scalars_and_empty_tensors(path):
    path.write_bytes(safetensors_bytes({"s": Entry("F32", (), bytes(4)), "e": Entry("F16", (0, 5), b"")}))
    tensors = read(path)
    assert (tensors["s"].shape, tensors["e"].shape) == ((), (0, 5))
    assert tensors["e"].data.nbytes == 0


def test_a_file_cut_anywhere_is_refused(path):
    whole = safetensors_bytes(TENSORS)
    path.write_bytes(whole)
    for length in reversed(range(len(whole))):
        os.truncate(path, length)
        with pytest.raises(ModelError, match=r"cut short|empty"):
            read(path)


def test_bytes_after_the_last_tensor_or_between_two(path):
    assert "3 bytes after the last tensor" in refusal(path, safetensors_bytes(TENSORS) + bytes(3))
    gap = {"a": entry(), "b": entry(span=(12, 20))}
    assert "tensor 'b': 4 bytes before it" in refusal(path, with_header(gap, bytes(20)))


def test_overlapping_tensors(path):
    for second in ((0, 8), (4, 12)):
        message = refusal(path, with_header({"a": entry(), "b": entry(span=second)}, bytes(12)))
        assert "tensor 'b': overlaps" in message


def test_a_header_that_cannot_be(path):
    assert "cut short" in refusal(path, b"\x01\0\0")
    assert "would be" in refusal(path, with_header({}, length=2**63))
    assert "would be" in refusal(path, b"GGUF" + bytes(range(60)))
    assert "cut short" in refusal(path, with_header({"a": entry()}, bytes(8), length=1000))
    assert "JSON" in refusal(path, with_header(b"{oops}"))
    assert "JSON" in refusal(path, with_header(b'{"a": "\xff"}'))
    assert "JSON" in refusal(path, with_header(b"[" * 50_000))
    assert "object" in refusal(path, with_header(b"[1]"))


def test_a_name_that_appears_twice(path):
    twice = json.dumps({"a": entry()})[:-1] + ", " + json.dumps({"a": entry()})[1:]
    assert "'a' appears twice" in refusal(path, with_header(twice.encode(), bytes(8)))


@pytest.mark.parametrize(
    "bad",
    [
        "x",
        None,
        [],
        {"dtype": "F32", "shape": [2]},
        entry(span=(0,)),
        entry(span=(8, 0)),
        entry(span=(-8, 0)),
        entry(span=(0, 8.0)),
        entry(span=(0, True)),
        entry(span=(0, 2**70)),
        entry(shape=(3,)),
        entry(shape=(-2,)),
        entry(shape=(2.0,)),
        entry(shape=(2**62, 2**62)),
        {"dtype": "F32", "shape": 2, "data_offsets": [0, 8]},
        {"dtype": 5, "shape": [2], "data_offsets": [0, 8]},
        {"shape": [2], "data_offsets": [0, 8]},
    ],
    ids=str,
)
def test_a_bad_entry_names_its_tensor(path, bad):
    assert "tensor 'weight'" in refusal(path, with_header({"weight": bad}, bytes(8)))


@pytest.mark.parametrize(
    ("kind", "size"), [("F8_E4M3", 1), ("F8_E5M2", 1), ("I32", 4), ("U8", 1), ("F64", 8), ("BOOL", 1)]
)
def test_other_types_are_refused_by_name(path, kind, size):
    path.write_bytes(with_header({"w.qweight": entry(kind, (8 // size,))}, bytes(8)))
    stored = read(path)
    assert stored["w.qweight"].kind == kind
    with pytest.raises(ModelError) as caught:
        model_tensors(stored, None)
    message = str(caught.value)
    assert f"{path}: tensor 'w.qweight': type '{kind}' is not supported" in message
    assert "supported are F32, F16, BF16, and quantised weights where quantization_config" in message


@pytest.mark.parametrize("kind", ["F4", "F6_E2M3", "C64", "Q4_0", "f32", None, 3, ["F32"]])
def test_unknown_types_are_refused_by_name(path, kind):
    message = refusal(path, with_header({"w.qweight": entry(kind)}, bytes(8)))
    assert f"tensor 'w.qweight': type {kind!r} is not known; known are BOOL, U8" in message


def test_a_tensor_that_is_skipped_is_checked_for_place_only(path):
    path.write_bytes(with_header({"old": entry("F64", (1,)), "new": entry(span=(8, 16))}, bytes(16)))
    assert list(read_safetensors(path, lambda name: name == "old")) == ["new"]
    path.write_bytes(with_header({"old": entry("F64", (1,), (4, 12)), "new": entry()}, bytes(12)))
    with pytest.raises(ModelError, match="overlaps"):
        read_safetensors(path, lambda name: name == "old")


# Shards


def test_shards_are_one_model(tmp_path):
    write_safetensors(tmp_path, TENSORS, shards=2)
    tensors = read_folder(tmp_path, keep_all)
    assert sorted(tensors) == ["a", "b", "c"]
    assert all(tensors[name].data.tobytes() == TENSORS[name].data for name in TENSORS)


def test_a_missing_shard_is_named(tmp_path):
    shards = write_safetensors(tmp_path, TENSORS, shards=2)
    shards[1].unlink()
    with pytest.raises(ModelError, match=r"index.json: the shard model-00002-of-00002.safetensors"):
        read_folder(tmp_path, keep_all)


def test_a_tensor_missing_from_its_shard_is_named(tmp_path):
    shards = write_safetensors(tmp_path, TENSORS, shards=2)
    shards[0].write_bytes(safetensors_bytes({"b": TENSORS["b"]}))
    with pytest.raises(ModelError, match=r"model-00001-of-00002.safetensors: tensor 'c' is missing"):
        read_folder(tmp_path, keep_all)


def test_a_tensor_in_another_shard_than_the_index_says(tmp_path):
    write_safetensors(tmp_path, TENSORS, shards=2)
    index = tmp_path / "model.safetensors.index.json"
    document = json.loads(index.read_text())
    document["weight_map"]["b"] = "model-00002-of-00002.safetensors"
    index.write_text(json.dumps(document))
    with pytest.raises(ModelError, match=r"00002-of-00002.safetensors: tensor 'b' is missing"):
        read_folder(tmp_path, keep_all)


def test_a_tensor_in_two_shards(tmp_path):
    shards = write_safetensors(tmp_path, TENSORS, shards=2)
    shards[1].write_bytes(safetensors_bytes(TENSORS))
    with pytest.raises(ModelError, match=r"00002.safetensors: tensor 'b' is in the shard model-00001"):
        read_folder(tmp_path, keep_all)


@pytest.mark.parametrize("shard", ["../secret", "/etc/passwd", "sub/x", "", ".", "..", 5, None])
def test_an_index_cannot_reach_out_of_its_directory(tmp_path, shard):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(ModelError, match="weight_map must give the file name"):
        read_folder(tmp_path, keep_all)


def test_a_broken_index(tmp_path):
    index = tmp_path / "model.safetensors.index.json"
    for content in ("{", "[]", "{}", '{"weight_map": []}'):
        index.write_text(content)
        with pytest.raises(ModelError, match=r"index.json: "):
            read_folder(tmp_path, keep_all)


def test_a_directory_without_safetensors(tmp_path):
    with pytest.raises(ModelError, match=r"neither model.safetensors nor"):
        read_folder(tmp_path, keep_all)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"pytorch_model.bin must be converted"):
        read_folder(tmp_path, keep_all)
