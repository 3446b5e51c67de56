"""A loaded executor keeps none of the pages of the files that it was packed from."""

from __future__ import annotations

from pathlib import Path

import pytest
from executor_rig import make_executor

from rigs.models import random_weights, tiny_spec, write_gguf_model, write_hf_model
from rigs.resident import on_linux, resident
from rooftree.checkpoint.open import open_checkpoint
from rooftree.checkpoint.quantize_on_load import quantized
from rooftree.engine.executors.cpu import CPUExecutor
from rooftree.engine.executors.reference import ReferenceExecutor
from rooftree.errors import ModelError

SIZES = {"vocab_size": 2000, "hidden_size": 512, "intermediate_size": 1024, "num_heads": 8, "num_kv_heads": 4}


@on_linux
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", [CPUExecutor, ReferenceExecutor])
@pytest.mark.parametrize("how", ["gguf", "shards", "quantized"])
def test_the_pages_go_back(tmp_path: Path, how: str, tied: bool, kind: type[CPUExecutor]):
    spec = tiny_spec(**SIZES, tie_word_embeddings=tied)
    weights = random_weights(spec)
    if how == "gguf":
        path = write_gguf_model(tmp_path / "m.gguf", spec, weights, dtype="F16")
    else:
        path = write_hf_model(tmp_path, spec, weights, dtype="F16", shards=3)
    checkpoint = open_checkpoint(str(path))
    if how == "quantized":
        checkpoint = quantized(checkpoint, "q4_0")
    executor = make_executor(checkpoint, kind)
    assert checkpoint.weight_bytes > 1 << 21
    # The header is read before; each file may keep one stretch that a neighbour's bytes share.
    assert resident(tmp_path) < 1 << 19
    executor.close()


def test_a_file_cut_before_it_is_packed_is_refused(tmp_path: Path):
    spec = tiny_spec()
    path = write_gguf_model(tmp_path / "m.gguf", spec, random_weights(spec), dtype="Q4_0")
    checkpoint = open_checkpoint(str(path))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    with pytest.raises(ModelError, match=r"m\.gguf: the file was cut from"):
        make_executor(checkpoint)
