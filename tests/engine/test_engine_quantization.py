"""--quantization: the engine answers as it does on a file that was quantised beforehand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rigs.models import random_weights, tiny_spec, write_gguf_model, write_hf_model
from rigs.quantized_writer import SCHEMES, quantized_entries, write_quantized_model
from rooftree.checkpoint.base import DType
from rooftree.checkpoint.formats import dequantize
from rooftree.checkpoint.open import open_checkpoint
from rooftree.engine.llm import LLM
from rooftree.errors import ConfigError
from rooftree.sampling.params import SamplingParams

SPEC = tiny_spec("llama", vocab_size=300, intermediate_size=96)
WEIGHTS = random_weights(SPEC)
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True, logprobs=3)


def answer(model: Path, **options: Any) -> tuple[list[int], list[Any], list[str]]:
    """Tokens, their logprobs, and what start-up said."""
    with LLM(str(model), threads=1, kv_cache_memory=1 << 20, **options) as llm:
        (output,) = llm.generate([list(range(1, 40))], GREEDY)
        completion = output.outputs[0]
        assert completion.logprobs is not None
        return list(completion.token_ids), list(completion.logprobs), list(llm.ready.notices)


@pytest.mark.parametrize("scheme", ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1"])
def test_answers_are_those_of_the_quantised_file(tmp_path: Path, scheme: str):
    def kind(name: str) -> DType:
        known: dict[str, DType] = {"q4_0": "Q4_0", "q4_1": "Q4_1", "q5_0": "Q5_0", "q5_1": "Q5_1"}
        outer = name.startswith(("model.embed", "lm_head"))
        return "Q8_0" if outer else known.get(scheme, "Q8_0")

    floats = write_hf_model(tmp_path / "floats", SPEC, WEIGHTS)
    rounded = write_gguf_model(tmp_path / "rounded.gguf", SPEC, WEIGHTS, dtype=kind)
    tokens, logprobs, _ = answer(rounded)
    assert answer(floats, quantization=scheme)[:2] == (tokens, logprobs)
    assert answer(floats)[1] != logprobs


def test_weights_must_fit_as_they_are_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """FP4 takes a third more in tiles than in the file."""
    spec = tiny_spec("llama", vocab_size=300, intermediate_size=1024, hidden_size=256)
    entries = quantized_entries(random_weights(spec), "ct-nvfp4")
    model = write_quantized_model(tmp_path, spec, entries, SCHEMES["ct-nvfp4"].config)
    with LLM(str(model), threads=1, kv_cache_memory=1 << 20) as llm:
        packed = llm.core.executor.weight_bytes
    assert open_checkpoint(str(model)).weight_bytes < 0.9 * packed
    monkeypatch.setattr("rooftree.engine.builder.available_bytes", lambda: int(0.95 * packed))
    with pytest.raises(ConfigError, match="the weights take"):
        LLM(str(model), threads=1)


@pytest.mark.parametrize("scheme", ["ct-tensor", "ct-channel", "fp8-block"])
def test_fp8_answers_are_those_of_the_values_it_stands_for(tmp_path: Path, scheme: str):
    entries = quantized_entries(WEIGHTS, scheme)
    published = write_quantized_model(tmp_path / "fp8", SPEC, entries, SCHEMES[scheme].config)
    tensors = open_checkpoint(str(published)).tensors
    values = {name: dequantize(tensor) for name, tensor in tensors.items()}
    floats = write_hf_model(tmp_path / "floats", SPEC, values)
    assert answer(published, executor="reference") == answer(floats, executor="reference")


def test_notices_reach_whoever_starts_the_engine(tmp_path: Path):
    ragged = tiny_spec("llama", vocab_size=300, intermediate_size=80)
    model = write_hf_model(tmp_path, ragged, random_weights(ragged))
    *_, notices = answer(model, quantization="q8_0")
    assert any("--quantization q8_0 leaves 2 weights" in notice for notice in notices)


def test_what_cannot_be_quantised_is_refused(tmp_path: Path):
    model = write_gguf_model(tmp_path / "m.gguf", SPEC, WEIGHTS, dtype="Q4_1")
    with pytest.raises(
        ConfigError,
        match=r"no weight of m can be quantised.*--quantization q8_0 leaves",
    ):
        LLM(str(model), quantization="q8_0")
    with pytest.raises(ConfigError, match="quantization"):
        LLM(str(model), quantization="q3_k")
