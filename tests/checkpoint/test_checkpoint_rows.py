"""Rows in pieces are the whole tensor's, pages go back once copied, and a file cut meanwhile is a refusal."""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rigs.models import random_weights, tiny_spec, write_gguf_model, write_hf_model
from rigs.quantized_writer import SCHEMES, quantized_entries, write_quantized_model
from rigs.resident import on_linux, resident
from rooftree.checkpoint.base import Checkpoint, Tensor
from rooftree.checkpoint.formats import dequantize
from rooftree.checkpoint.mapped import MappedFile, map_file
from rooftree.checkpoint.open import open_checkpoint
from rooftree.checkpoint.quantize_on_load import quantized
from rooftree.errors import ModelError

SPEC = tiny_spec(vocab_size=300, hidden_size=192, intermediate_size=320, num_heads=12, num_kv_heads=4)
SIZE = 1 << 22


@pytest.fixture(scope="module")
def tensors(tmp_path_factory: pytest.TempPathFactory) -> list[Tensor]:
    """Of every way in which bytes are stored or made: mapped, moved, joined, checked, quantised."""
    folder = tmp_path_factory.mktemp("rows")
    weights = random_weights(SPEC)
    gguf = open_checkpoint(str(write_gguf_model(folder / "m.gguf", SPEC, weights, dtype="Q4_1")))
    plain = open_checkpoint(str(write_hf_model(folder / "hf", SPEC, weights, dtype="BF16")))
    opened = [gguf, plain, quantized(plain, "q5_0")]
    schemes = ("ct-channel", "fp8-block", "ct-nvfp4", "ct-mxfp4", "mxfp4")
    opened += [published(folder / scheme, scheme) for scheme in schemes]
    return [tensor for checkpoint in opened for tensor in checkpoint.tensors.values()]


def published(folder: Path, scheme: str) -> Checkpoint:
    entries = quantized_entries(random_weights(SPEC), scheme)
    return open_checkpoint(str(write_quantized_model(folder, SPEC, entries, SCHEMES[scheme].config)))


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_rows_in_pieces_are_the_whole(tensors: list[Tensor], data: st.DataObject):
    tensor = data.draw(st.sampled_from(tensors))
    ends = sorted(data.draw(st.sets(st.integers(0, tensor.num_rows), max_size=4)) | {0, tensor.num_rows})
    pieces = [tensor.rows(first, last).tobytes() for first, last in pairwise(ends)]
    assert b"".join(pieces) == tensor.data.tobytes()
    assert len(tensor.data) == tensor.num_bytes


def mapped(folder: Path) -> MappedFile:
    path = folder / "weights"
    path.write_bytes(np.random.default_rng(0).bytes(SIZE))
    return map_file(path)


@on_linux
def test_pages_given_back_leave_the_process_and_are_still_readable(tmp_path: Path):
    file = mapped(tmp_path)
    expected = file.path.read_bytes()
    assert file.data.tobytes() == expected
    assert resident(file.path) == SIZE
    file.give_back(file.data[100 : SIZE // 2])
    assert resident(file.path) <= SIZE // 2
    file.give_back(file.data[SIZE // 2 : SIZE - 1])
    assert resident(file.path) == 0
    assert file.data.tobytes() == expected


@on_linux
def test_a_tensor_gives_back_its_own_pages(tmp_path: Path):
    file = mapped(tmp_path)
    tensor = Tensor("w", (4, SIZE // 16), "F16", file.data[SIZE // 4 :][: SIZE // 2], "test", file=file)
    whole = Tensor("all", (SIZE // 2,), "F16", file.data, "test", file=file)
    dequantize(whole)
    assert resident(file.path) == 0
    file.data.sum()
    tensor.give_back(0, 2)
    assert 0 < resident(file.path) <= 3 * SIZE // 4
    tensor.give_back(2, 4)
    assert resident(file.path) <= SIZE // 2


def test_nothing_to_give_back_is_no_error(tmp_path: Path):
    file = mapped(tmp_path)
    file.give_back(file.data[:0])
    Tensor("w", (4,), "F32", np.zeros(16, np.uint8), "test").give_back(0, 4)


def test_a_file_cut_while_it_is_read_is_refused_by_name(tmp_path: Path):
    file = mapped(tmp_path)
    tensor = Tensor("w", (SIZE // 2,), "F16", file.data, "test", file=file)
    tensor.rows(0, 10)
    os.truncate(file.path, SIZE - 1)
    for read in (lambda: tensor.rows(0, 10), lambda: tensor.give_back(0, 10), lambda: dequantize(tensor)):
        with pytest.raises(ModelError, match=rf"weights: the file was cut from {SIZE} to {SIZE - 1} bytes"):
            read()
