"""What an engine allocates equals what is predicted of it, to the block and the token."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

from rigs.models import random_weights, tiny_spec, write_gguf_model
from rooftree.checkpoint.open import open_checkpoint
from rooftree.checkpoint.stored_architecture import stored_architecture
from rooftree.engine import builder
from rooftree.engine.builder import build_engine_core
from rooftree.engine.config import EngineConfig, KVCacheDType
from rooftree.engine.prediction import predict_footprint, predict_memory
from rooftree.errors import ConfigError
from rooftree.roofline.memory import MemoryOptions, kv_bytes_per_sequence
from rooftree.specs.weight_format import own_cache_dtype

MODELS: dict[str, dict[str, Any]] = {
    "GQA": {},
    "MHA": {"num_kv_heads": 4},
    "MQA": {"num_kv_heads": 1},
    "window": {"family": "mistral"},
    "some windows": {"num_layers": 3, "windows": (24, None, 24)},
    "norms": {"family": "qwen3"},
    "biases, tied": {"family": "qwen2", "tie_word_embeddings": True},
    "wide heads": {"head_dim": 40, "vocab_size": 333},
}
SETTINGS: dict[str, dict[str, Any]] = {
    "by need": {"max_num_seqs": 3},
    "by memory": {"kv_cache_fraction": 0.01, "max_num_seqs": 9},
    "asked": {"kv_cache_memory": 123_456},
    "short": {"max_model_len": 70, "max_num_batched_tokens": 32, "max_num_seqs": 5, "threads": 2},
    "large blocks": {"block_size": 48},
    "lowered": {"kv_cache_memory": 40_000},
}
AVAILABLE = 50 << 20


def checkpoint_of(folder: Path, over: dict[str, Any], dtype: str) -> Any:
    family = over.get("family", "llama")
    spec = tiny_spec(family, **{key: value for key, value in over.items() if key != "family"})
    return open_checkpoint(str(write_gguf_model(folder / "m.gguf", spec, random_weights(spec), dtype=dtype)))


@pytest.mark.parametrize("kv_dtype", get_args(KVCacheDType))
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("name", MODELS)
def test_blocks_and_longest_request_are_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, setting: str, kv_dtype: KVCacheDType
) -> None:
    monkeypatch.setattr(builder, "available_bytes", lambda: AVAILABLE)
    checkpoint = checkpoint_of(tmp_path, MODELS[name], "F16")
    config = EngineConfig(model="m", kv_cache_dtype=kv_dtype, **({"threads": 1} | SETTINGS[setting]))
    core, ready = build_engine_core(config, checkpoint)
    core.close()
    plan = predict_memory(config, checkpoint, AVAILABLE)
    assert (plan.num_blocks, plan.max_model_len) == (ready.num_blocks, ready.max_model_len)
    assert plan.rows == ready.memory_table[: len(plan.rows)]


def test_a_refusal_is_predicted_in_the_same_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder, "available_bytes", lambda: AVAILABLE)
    checkpoint = checkpoint_of(tmp_path, {}, "F16")
    for over in ({"max_model_len": 512, "kv_cache_memory": 10_000}, {"kv_cache_memory": 1 << 40}):
        config = EngineConfig(model="m", threads=1, **over)
        with pytest.raises(ConfigError) as refused:
            build_engine_core(config, checkpoint)
        with pytest.raises(ConfigError) as predicted:
            predict_memory(config, checkpoint, AVAILABLE)
        assert str(predicted.value) == str(refused.value)


@pytest.mark.parametrize("dtype", ["F32", "F16", "Q8_0", "Q4_0", "Q4_1"])
def test_the_footprint_is_that_of_the_executor(tmp_path: Path, dtype: str) -> None:
    checkpoint = checkpoint_of(tmp_path, {"vocab_size": 500}, dtype)
    config = EngineConfig(model="m", threads=2, kv_cache_memory=1 << 20)
    core, ready = build_engine_core(config, checkpoint)
    footprint = predict_footprint(config, checkpoint, ready.max_model_len)
    executor = core.executor
    assert footprint.weight_bytes == executor.weight_bytes
    assert footprint.activation_bytes == executor.activation_bytes
    assert footprint.kv_bytes_per_block == executor.kv_bytes_per_block
    core.close()


@pytest.mark.parametrize("kv_dtype", get_args(KVCacheDType))
@pytest.mark.parametrize("name", MODELS)
def test_the_planner_counts_a_request_as_the_engine_does(
    tmp_path: Path, name: str, kv_dtype: KVCacheDType
) -> None:
    checkpoint = checkpoint_of(tmp_path, MODELS[name], "F16")
    config = EngineConfig(model="m", threads=1, kv_cache_dtype=kv_dtype)
    block = predict_footprint(config, checkpoint, 512).kv_bytes_per_block
    for tokens in (1, 16, 17, 500):
        planned = kv_bytes_per_sequence(
            stored_architecture(checkpoint),
            tokens,
            kv_dtype=own_cache_dtype(kv_dtype),
            options=MemoryOptions(block_tokens=config.block_size),
        )
        assert planned == -(-tokens // config.block_size) * block
