"""rooftree inspect and rooftree devices, as a user types them (in process)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rigs.gguf_writer import GgufTensor, write_gguf
from rigs.models import random_weights, tiny_spec, write_gguf_model
from rooftree.cli.main import cli

MIXTRAL: dict[str, Any] = {
    "model_type": "mixtral",
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
}
GPT_OSS_LAYERS = ["sliding_attention", "full_attention"] * 18
GPT_OSS: dict[str, Any] = {
    "model_type": "gpt_oss",
    "vocab_size": 201088,
    "hidden_size": 2880,
    "intermediate_size": 2880,
    "num_hidden_layers": 36,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "num_local_experts": 128,
    "num_experts_per_tok": 4,
    "sliding_window": 128,
    "layer_types": GPT_OSS_LAYERS,
    "max_position_embeddings": 131072,
    "quantization_config": {"quant_method": "mxfp4"},
}


def rooftree(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [*map(str, arguments)])


def facts_of(*arguments: object) -> dict[str, Any]:
    result = rooftree(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def written(folder: Path, config: object) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(config))
    return file


@pytest.mark.parametrize("as_folder", [False, True])
def test_a_config_alone(tmp_path: Path, as_folder: bool):
    file = written(tmp_path, MIXTRAL)
    facts = facts_of("inspect", tmp_path if as_folder else file)
    assert facts["parameters"] == 46_702_792_704
    assert facts["parameters_active"] == 12_879_925_248
    assert facts["weight_bytes"] == 2 * 46_702_792_704
    assert facts["kv_bytes_per_token"]["bf16"] == 131_072
    assert len(facts["layer_detail"]) == 32
    layer = facts["layer_detail"][31]
    assert layer["mixer"]["kind"] == "Attention"
    assert (layer["feed_forward"]["experts"], layer["feed_forward"]["active"]) == (8, 2)
    assert layer["kv_bytes_per_token"] == 4096
    assert sum(part["weight_bytes"] for part in facts["layer_detail"]) == 2 * (
        46_702_792_704 - 2 * 32000 * 4096 - 4096
    )
    assert any("does not run" in note for note in facts["notes"]) == as_folder


def test_windows_and_quantised_weights(tmp_path: Path):
    facts = facts_of("inspect", written(tmp_path, GPT_OSS))
    assert facts["weight_bytes"] == 65_248_815_744
    assert facts["weight_format"] == "mxfp4"
    kept = facts["kv_bytes_at_context"]
    assert kept["all_kept"] == 73_728 * 131_072
    assert kept["windows_freed"] == 36_864 * 131_072 + 36_864 * 128
    table = rooftree("inspect", tmp_path / "config.json").output
    assert "18 layers (0, 2, 4, 6, ...): Attention (num heads 64" in table
    assert "window 128" in table


def test_a_model_that_the_engine_runs(tmp_path: Path):
    spec = tiny_spec()
    file = write_gguf_model(tmp_path / "tiny.gguf", spec, random_weights(spec))
    facts = facts_of("inspect", file)
    assert facts["parameters"] == facts["parameters_active"] == spec.num_parameters
    assert facts["weight_bytes"] == sum(facts["bytes_by_type"].values())
    inside = sum(layer["weight_bytes"] for layer in facts["layer_detail"])
    assert inside == facts["weight_bytes"] - 4 * (2 * 512 * 64 + 64)
    assert facts["notes"] == []


def test_a_gguf_file_that_it_does_not_run(tmp_path: Path):
    tensors = {"token_embd.weight": (64, 32), "output_norm.weight": (32,), "blk.0.attn_norm.weight": (32,)}
    tensors |= {
        "blk.0.ssm_in.weight": (128, 32),
        "blk.0.ssm_conv1d.weight": (64, 4),
        "blk.0.ssm_x.weight": (10, 64),
    }
    tensors |= {"blk.0.ssm_dt.weight": (64, 2), "blk.0.ssm_dt.bias": (64,), "blk.0.ssm_a": (64, 4)}
    tensors |= {"blk.0.ssm_d": (64,), "blk.0.ssm_out.weight": (32, 64), "blk.0.ssm_conv1d.bias": (64,)}
    keys = {"block_count": 1, "embedding_length": 32, "ssm.conv_kernel": 4, "ssm.inner_size": 64}
    keys |= {"ssm.state_size": 4, "ssm.time_step_rank": 2}
    metadata = {"general.architecture": "mamba"} | {f"mamba.{key}": value for key, value in keys.items()}
    numbers = dict.fromkeys(tensors, 1)
    for name, shape in tensors.items():
        for size in shape:
            numbers[name] *= size
    entries = [GgufTensor(name, shape, 0, bytes(4 * numbers[name])) for name, shape in tensors.items()]
    facts = facts_of("inspect", write_gguf(tmp_path / "mamba.gguf", metadata, entries))
    assert facts["parameters"] == sum(numbers.values())
    assert facts["kv_bytes_per_token"]["fp16"] == 0
    assert facts["state_bytes_per_sequence"] == 64 * 3 * 2 + 64 * 4 * 4
    assert "does not run" in facts["notes"][-1]


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ([], "JSON object"),
        ({**MIXTRAL, "hidden_size": None}, "hidden_size"),
        ({**MIXTRAL, "num_local_experts": "eight"}, "num_local_experts"),
        ({"model_type": "marvel"}, "marvel"),
        ({}, "model_type"),
    ],
)
@pytest.mark.parametrize("as_folder", [False, True])
def test_errors_name_the_field(tmp_path: Path, config: object, word: str, as_folder: bool):
    file = written(tmp_path, config)
    result = rooftree("inspect", tmp_path if as_folder else file)
    assert result.exit_code == 1
    assert word in result.output
    assert "Traceback" not in result.output


def test_no_such_model():
    result = rooftree("inspect", "nowhere.json")
    assert result.exit_code == 1
    assert "nowhere.json" in result.output


def test_devices():
    devices = facts_of("devices")["devices"]
    h100 = next(device for device in devices if device["name"] == "NVIDIA H100 SXM")
    assert h100["peak_flops"]["bf16"] == pytest.approx(989.4e12)
    assert h100["bandwidth"] == 3350e9
    assert h100["link"]["bytes_per_second"] * 2 == h100["link"]["bidirectional_bytes_per_second"] == 900e9
    assert h100["ridge_flop_per_byte"]["fp16"] == pytest.approx(295, abs=0.5)
    assert all(device["sources"] for device in devices)
    table = rooftree("devices").output
    assert all(device["name"] in table for device in devices)


def test_own_devices(tmp_path: Path):
    file = tmp_path / "mine.toml"
    file.write_text(
        '[[device]]\nname = "Mine"\nmemory_gib = 8\nbandwidth_gb_per_s = 50\npeak_tflops = { fp32 = 1 }\n'
    )
    (mine,) = facts_of("devices", "mine", "--file", file)["devices"]
    assert mine["memory_bytes"] == 8 * 2**30
    assert "Mine" in rooftree("devices", "--file", file).output
    file.write_text("[[device]]\n")
    result = rooftree("devices", "--file", file)
    assert result.exit_code == 1
    assert "mine.toml" in result.output
    assert rooftree("devices", "H1000").exit_code == 1
