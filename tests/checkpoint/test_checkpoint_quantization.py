"""quantization_config of published checkpoints: bytes to the last scale, and which modules are left alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from published_configs import config

from rooftree.checkpoint.architectures.parse import parse_architecture, read_architecture
from rooftree.errors import ModelError
from rooftree.specs.architecture import Architecture

# Llama-3-8B: linear weights inside the layers, and all else.
LINEAR, REST = 6_979_321_856, 8_030_261_248 - 6_979_321_856

FP8_BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
MXFP4 = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}


def quantised(name: str, quantization: Any, **over: Any) -> Architecture:
    return parse_architecture(config(name, quantization_config=quantization, **over), "config.json")


def compressed(weights: dict[str, Any], activations: Any = None, **over: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "format": "pack-quantized",
        **over,
    }


@pytest.mark.parametrize(
    ("name", "total_size"), [("gpt-oss-20b", 13_761_264_768), ("gpt-oss-120b", 65_248_815_744)]
)
def test_mxfp4_bytes_are_those_of_the_published_files(name: str, total_size: int):
    """``metadata.total_size`` of their model.safetensors.index.json."""
    assert quantised(name, MXFP4).weight_bytes() == total_size


def test_mxfp4_packs_experts_even_without_a_list():
    assert quantised("gpt-oss-20b", {"quant_method": "mxfp4"}).weight_bytes() == 13_761_264_768


def test_awq():
    awq = quantised("llama-3-8b", {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True})
    # 4 bits each, and per group of 128 an fp16 scale and a 4-bit zero.
    assert awq.weight_bytes() == LINEAR // 2 + LINEAR // 128 * 20 // 8 + 2 * REST
    symmetric = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": False}
    assert quantised("llama-3-8b", symmetric).weight_bytes() == LINEAR // 2 + LINEAR // 64 * 2 + 2 * REST


def test_gptq_keeps_an_index_per_column():
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True}
    awq = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
    columns = 32 * (4096 * 4 + 4096 * 2 + 14336)
    difference = quantised("llama-3-8b", gptq).weight_bytes() - quantised("llama-3-8b", awq).weight_bytes()
    assert difference == 4 * columns


def test_gptq_of_whole_rows():
    gptq = {"quant_method": "gptq", "bits": 8, "group_size": -1}
    rows = 32 * (4096 * 2 + 2 * 1024 + 2 * 14336 + 4096)
    columns = 32 * (4096 * 4 + 4096 * 2 + 14336)
    assert quantised("llama-3-8b", gptq).weight_bytes() == LINEAR + 3 * rows + 4 * columns + 2 * REST


def test_fused_projections_share_their_index():
    """Phi-3 stores Q, K and V in one matrix: one g_idx, not three."""
    gptq = quantised("phi-4", {"quant_method": "gptq", "bits": 4, "group_size": 128})
    plain = quantised("phi-4", {"quant_method": "awq", "bits": 4, "group_size": 128})
    columns = 40 * (5120 + 5120 + 5120 + 17920)
    assert gptq.weight_bytes() - plain.weight_bytes() == 4 * columns


def test_fp8_blocks():
    fp8 = quantised("llama-3-8b", FP8_BLOCKS)
    assert fp8.weight_bytes() == LINEAR + LINEAR // 128**2 * 4 + 2 * REST
    deepseek = quantised("deepseek-v3", FP8_BLOCKS)
    routers = 58 * (256 * 7168 + 256)
    assert deepseek.weight_bytes_by_role()["router"] == 2 * routers
    assert deepseek.weight_bytes_by_role()["head"] == 2 * 129_280 * 7168


def test_fp8_blocks_of_ragged_tensors_are_rounded_up():
    """kv_a_proj_with_mqa has 576 rows: 4.5 blocks, so 5."""
    deepseek = quantised("deepseek-v3", FP8_BLOCKS)
    ragged = next(s for s in deepseek.stored() if s.weight.name == "self_attn.kv_a_proj_with_mqa.weight")
    assert ragged.num_bytes == 576 * 7168 + 5 * 56 * 4


@pytest.mark.parametrize(("scheme", "scales"), [("dynamic", 4), ("static", 8)])
def test_fp8_per_tensor(scheme: str, scales: int):
    fp8 = quantised("llama-3-8b", {"quant_method": "fp8", "activation_scheme": scheme})
    assert fp8.weight_bytes() == LINEAR + 32 * 7 * scales + 2 * REST


def test_fp8_ignores_named_modules():
    ignored = {**FP8_BLOCKS, "modules_to_not_convert": ["model.layers.0", "lm_head"]}
    layers = quantised("llama-3-8b", ignored).layer_weight_bytes()
    assert layers[0] == 2 * (LINEAR // 32 + 2 * 4096)
    assert layers[10] == layers[1] < layers[0]
    assert len(layers) == 32


def test_layer_1_does_not_ignore_layer_10():
    ignored = {**FP8_BLOCKS, "modules_to_not_convert": ["model.layers.1"]}
    layers = quantised("llama-3-8b", ignored).layer_weight_bytes()
    assert layers[1] > layers[10] == layers[11] == layers[0]


def test_compressed_tensors_integers():
    four = compressed(
        {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}
    )
    packed = quantised("llama-3-8b", four)
    # An int64 shape of two numbers for each of seven tensors.
    assert packed.weight_bytes() == LINEAR // 2 + LINEAR // 128 * 2 + 32 * 7 * 16 + 2 * REST
    eight = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
    w8a8 = quantised(
        "llama-3-8b", compressed(eight, {"num_bits": 8, "dynamic": True}, format="int-quantized")
    )
    rows = 32 * (4096 * 2 + 2 * 1024 + 2 * 14336 + 4096)
    assert w8a8.weight_bytes() == LINEAR + 2 * rows + 2 * REST
    assert w8a8.scheme.linear.arithmetic == "int8"
    assert packed.scheme.linear.arithmetic == "bf16"


def test_compressed_tensors_floats():
    fp8 = {"num_bits": 8, "type": "float", "strategy": "tensor"}
    static = quantised("llama-3-8b", compressed(fp8, {"num_bits": 8, "type": "float", "dynamic": False}))
    assert static.weight_bytes() == LINEAR + 32 * 7 * 8 + 2 * REST
    assert static.scheme.linear.arithmetic == "fp8"
    nvfp4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    fp4 = quantised("llama-3-8b", compressed(nvfp4, {"num_bits": 4, "type": "float"}))
    assert fp4.weight_bytes() == LINEAR // 2 + LINEAR // 16 + 32 * 7 * 8 + 2 * REST
    assert fp4.scheme.linear.arithmetic == "fp4"
    weight_only = quantised("llama-3-8b", compressed(nvfp4))
    assert weight_only.weight_bytes() == LINEAR // 2 + LINEAR // 16 + 32 * 7 * 4 + 2 * REST
    assert weight_only.scheme.linear.arithmetic == "bf16"


def test_compressed_tensors_expressions_and_targets():
    eight = {"num_bits": 8, "type": "float", "strategy": "channel"}
    base = compressed(eight, {"num_bits": 8, "type": "float"})
    ignored = quantised("llama-3-8b", {**base, "ignore": ["re:.*self_attn.*", "model.layers.0.mlp.up_proj"]})
    roles = ignored.weight_bytes_by_role()
    assert roles["attention"] == 2 * 32 * (2 * 4096 * 4096 + 2 * 1024 * 4096)
    layers = ignored.layer_weight_bytes()
    assert layers[0] - layers[1] == 4096 * 14336 - 2 * 14336
    targeted = {**base}
    targeted["config_groups"] = {"g": {**base["config_groups"]["group_0"], "targets": ["re:.*down_proj"]}}
    down = 32 * (4096 * 14336 + 2 * 4096)
    rest = 8_030_261_248 - 32 * 4096 * 14336
    assert quantised("llama-3-8b", targeted).weight_bytes() == down + 2 * rest


def test_modelopt():
    nvfp4 = {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "ignore": ["lm_head", "model.layers.0.self_attn*"],
    }
    fp4 = quantised("llama-3-8b", nvfp4)
    attention = 2 * 4096 * 4096 + 2 * 1024 * 4096
    packed = LINEAR - attention
    assert fp4.weight_bytes() == packed // 2 + packed // 16 + (32 * 7 - 4) * 8 + 2 * (REST + attention)
    assert fp4.scheme.linear.arithmetic == "fp4"


def test_modelopt_by_module():
    def mixed(name: str, modules: dict[str, str]) -> Architecture:
        layers = {module: {"quant_algo": algorithm} for module, algorithm in modules.items()}
        return quantised(
            name, {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
        )

    dense = mixed(
        "llama-3-8b", {"model.layers.3.self_attn.q_proj": "FP8", "model.layers.3.mlp.up_proj": "NVFP4"}
    )
    query, up = 4096 * 4096, 4096 * 14336
    saved = query - 8 + 2 * up - (up // 2 + up // 16 + 8)
    assert dense.weight_bytes() == 2 * 8_030_261_248 - saved
    experts = {f"model.layers.0.mlp.experts.{e}.up_proj": "NVFP4" for e in range(128)}
    one = 768 * 2048
    sparse = mixed("qwen3-30b-a3b", experts)
    assert sparse.weight_bytes() == 2 * 30_532_122_624 - 128 * (2 * one - (one // 2 + one // 16 + 8))


def test_modelopt_in_a_file_beside(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps(config("llama-3-8b")))
    beside = {"quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(beside))
    assert read_architecture(tmp_path).weight_bytes() == LINEAR + 32 * 7 * 8 + 2 * REST


def test_quantization_outside_a_nested_text_config():
    nested = {"text_config": config("llama-3-8b"), "model_type": "wrapper", "quantization_config": FP8_BLOCKS}
    assert (
        parse_architecture(nested, "x").weight_bytes() == quantised("llama-3-8b", FP8_BLOCKS).weight_bytes()
    )


def test_null_means_unquantised():
    assert quantised("llama-3-8b", None).weight_bytes() == 2 * 8_030_261_248
    assert quantised("llama-3-8b", None, torch_dtype="float32").weight_bytes() == 4 * 8_030_261_248


@pytest.mark.parametrize(
    ("quantization", "field"),
    [
        ("fp8", "quantization_config"),
        ({}, "quantization_config.quant_method"),
        ({"quant_method": "bitsandbytes"}, "bitsandbytes"),
        ({"quant_method": "gptq", "group_size": 128}, "quantization_config.bits is missing"),
        ({"quant_method": "gptq", "bits": 5, "group_size": 128}, "bits"),
        ({"quant_method": "gptq", "bits": 4}, "quantization_config.group_size is missing"),
        ({"quant_method": "awq", "w_bit": 5, "q_group_size": 128}, "quantization_config.w_bit is 5"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"a": {}}}, "dynamic"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size"),
        ({"quant_method": "fp8", "modules_to_not_convert": "lm_head"}, "modules_to_not_convert"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ"}, "quant_algo"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "quantized_layers"),
        (
            {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": {"a": {}}},
            "quantized_layers.a.quant_algo",
        ),
        ({"quant_method": "compressed-tensors"}, "config_groups"),
        (compressed({"num_bits": 4, "type": "float", "group_size": 8}), "group_0.weights.group_size"),
        (compressed({"num_bits": 6, "type": "float"}), "num_bits"),
        (compressed({"num_bits": 8, "type": "float", "strategy": "odd"}), "group_0.weights.strategy"),
        (compressed({"num_bits": 8, "type": "float", "strategy": "block"}), "block_structure"),
        (compressed({"type": "int"}), "num_bits"),
        ({**compressed({}), "config_groups": {"a": 3}}, "config_groups"),
        ({**compressed({}), "config_groups": {"a": {}}}, "a.weights"),
        (compressed({"num_bits": 8, "type": "float", "strategy": "tensor"}, ignore=["re:("]), "ignore"),
    ],
)
def test_refuses_by_field(quantization: Any, field: str):
    with pytest.raises(ModelError) as error:
        quantised("llama-3-8b", quantization)
    assert "config.json" in str(error.value)
    assert field in str(error.value)
