from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from engine_fakes import FakeExecutor

from rooftree.checkpoint.open import open_checkpoint
from rooftree.engine.builder import build_engine_core
from rooftree.engine.config import EngineConfig
from rooftree.engine.llm import LLM
from rooftree.errors import ConfigError, ModelError
from rooftree.sampling.params import SamplingParams
from rooftree.scheduler.output import ModelRunnerOutput, SchedulerOutput

PHASES = ["open", "weights", "kv_cache", "machine", "warm_up"]


def test_start_up_tells_its_phases_and_its_memory(tiny_model: Callable[[str, str], str]):
    seen: list[str] = []
    config = EngineConfig(model=tiny_model("llama", "F32"), kv_cache_memory=1 << 20, threads=1)
    core, ready = build_engine_core(config, progress=seen.append)
    assert seen == list(ready.phase_seconds) == PHASES
    assert all(seconds >= 0 for seconds in ready.phase_seconds.values())
    block_bytes = core.executor.kv_bytes_per_block
    assert ready.num_blocks == (1 << 20) // block_bytes == core.stats().num_total_blocks
    assert [row[0] for row in ready.memory_table][:3] == ["weights", "activations", "KV cache"]
    assert (ready.block_size, ready.max_model_len, ready.notices) == (16, 512, [])
    core.close()


def test_a_context_that_does_not_fit_is_lowered_with_a_notice(tiny_model: Callable[[str, str], str]):
    block = 16 * 2 * 2 * 32 * 2
    with LLM(tiny_model("llama", "F32"), kv_cache_memory=5 * block, threads=1) as llm:
        assert llm.max_model_len == 80
        assert "512" in llm.ready.notices[0]
        (output,) = llm.generate([[1] * 70], SamplingParams(ignore_eos=True))
        assert len(output.outputs[0].token_ids) == 10


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_model_len": 513}, "made for"),
        ({"max_model_len": 0}, "--max-model-len"),
        ({"max_model_len": 512, "kv_cache_memory": 1 << 16}, "--kv-cache-dtype"),
        ({"kv_cache_memory": 1}, "fits is 0 tokens"),
        ({"kv_cache_memory": 1 << 60}, "available"),
        ({"kv_cache_memory": 0}, "--kv-cache-memory"),
        ({"kv_cache_fraction": 0.0}, "--kv-cache-fraction"),
        ({"kv_cache_fraction": float("nan")}, "--kv-cache-fraction"),
        ({"kv_watermark": 1.0}, "--kv-watermark"),
        ({"block_size": 24}, "--block-size"),
        ({"max_num_seqs": 0}, "--max-num-seqs"),
        ({"max_num_batched_tokens": 3}, "--max-num-batched-tokens"),
        ({"max_num_batched_tokens": 1 << 31}, "--max-num-batched-tokens"),
        ({"max_model_len": 1}, "--max-model-len must be at least 2"),
        ({"max_num_waiting": -1}, "--max-num-waiting"),
        ({"threads": 0}, "--threads"),
        ({"isa": "mmx"}, "--isa"),
        ({"kv_cache_dtype": "fp64"}, "kv_cache_dtype"),
        ({"scheduling_policy": "luck"}, "scheduling_policy"),
        ({"executor": "abacus"}, "executor"),
        ({"max_num_seqs": "4"}, "max_num_seqs"),
    ],
)
def test_options_that_cannot_be_are_refused_naming_the_flag(
    tiny_model: Callable[[str, str], str], options: dict[str, Any], text: str
):
    with pytest.raises(ConfigError, match=text):
        LLM(tiny_model("llama", "F32"), **options)


def test_memory_that_the_system_refuses_is_a_matter_of_options(tiny_model: Callable[[str, str], str]):
    def make_executor(*arguments: Any) -> Any:
        raise MemoryError("std::bad_alloc")

    config = EngineConfig(model=tiny_model("llama", "F32"), max_num_batched_tokens=1 << 20)
    with pytest.raises(
        ConfigError, match="--max-num-batched-tokens 1048576 and --max-num-seqs 64; lower them"
    ):
        build_engine_core(config, make_executor=make_executor)


def test_a_model_that_is_not_there_is_named():
    with pytest.raises(ModelError, match=r"no-such\.gguf"):
        LLM("no-such.gguf")


def test_weights_that_do_not_fit_are_not_loaded(
    tiny_model: Callable[[str, str], str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("rooftree.engine.builder.available_bytes", lambda: 1000)
    with pytest.raises(ConfigError, match="weights take"):
        build_engine_core(
            EngineConfig(),
            open_checkpoint(tiny_model("llama", "F32")),
            make_executor=lambda config, checkpoint, length: pytest.fail("loaded"),
        )


@pytest.mark.parametrize("fault", ["allocation", "logits", "defect"])
def test_a_start_that_fails_gives_everything_back(tiny_model: Callable[[str, str], str], fault: str):
    class Faulty(FakeExecutor):
        def allocate_kv_cache(self, num_blocks: int) -> None:
            if fault == "allocation":
                raise ConfigError("the system refused")
            super().allocate_kv_cache(num_blocks)

        def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
            if fault == "defect":
                raise ZeroDivisionError
            return ModelRunnerOutput({}, {}, {output.requests[0].request_id: "not finite"})

    executor = Faulty()
    expected = {"allocation": ConfigError, "logits": ModelError, "defect": ZeroDivisionError}
    with pytest.raises(expected[fault]):
        build_engine_core(
            EngineConfig(kv_cache_memory=1 << 20),
            open_checkpoint(tiny_model("llama", "F32")),
            make_executor=lambda config, checkpoint, length: executor,
        )
    assert executor.closed
