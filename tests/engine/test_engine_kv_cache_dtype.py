from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_args

import pytest

from rooftree import _native
from rooftree.checkpoint.open import open_checkpoint
from rooftree.checkpoint.quantize_on_load import quantized
from rooftree.engine.config import EngineConfig, KVCacheDType
from rooftree.engine.kv_cache_dtype import kv_cache_dtype
from rooftree.engine.llm import LLM
from rooftree.engine.prediction import predict_memory
from rooftree.errors import ConfigError

TinyModel = Callable[[str, str], str]
ISAS = _native.supported_isas()


def native(isa: str) -> str:
    """What BF16 weights get there."""
    return "bf16" if isa == "avx512_bf16" else "fp16"


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32", "Q4_1"])
def test_auto_follows_weights_and_kernels(tiny_model: TinyModel, isa: str, dtype: str):
    checkpoint = open_checkpoint(tiny_model("llama", dtype))
    expected = native(isa) if dtype == "BF16" else "fp16"
    assert kv_cache_dtype(EngineConfig(isa=isa), checkpoint) == expected
    assert kv_cache_dtype(EngineConfig(isa=isa, executor="reference"), checkpoint) == "fp16"


def test_weights_that_become_bf16_count_as_such(tiny_model: TinyModel):
    checkpoint = quantized(open_checkpoint(tiny_model("llama", "F16")), "bf16")
    assert kv_cache_dtype(EngineConfig(), checkpoint) == native(ISAS[0])


@pytest.mark.parametrize("dtype", get_args(KVCacheDType))
def test_a_choice_stays(tiny_model: TinyModel, dtype: Any):
    checkpoint = open_checkpoint(tiny_model("llama", "BF16"))
    assert kv_cache_dtype(EngineConfig(kv_cache_dtype=dtype), checkpoint) == dtype


def test_unknown_kernels_are_refused(tiny_model: TinyModel):
    with pytest.raises(ConfigError, match="--isa sse9"):
        kv_cache_dtype(EngineConfig(isa="sse9"), open_checkpoint(tiny_model("llama", "BF16")))


@pytest.mark.parametrize("isa", ISAS)
def test_all_that_start_up_tells_names_the_dtype_itself(tiny_model: TinyModel, isa: str):
    model = tiny_model("llama", "BF16")
    with LLM(model, isa=isa, threads=1, kv_cache_memory=1 << 20) as llm:
        (row,) = [row for row in llm.ready.memory_table if row[0] == "KV tokens"]
        assert row[2].endswith(f"--kv-cache-dtype {native(isa)}")
        assert llm.core.config.kv_cache_dtype == native(isa)
    config = EngineConfig(isa=isa, threads=1, kv_cache_memory=1 << 20)
    assert row in predict_memory(config, open_checkpoint(model), None).rows
