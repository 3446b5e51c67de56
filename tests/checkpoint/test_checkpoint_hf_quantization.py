"""quantization_config: what published files say, and every scheme that is not supported refused by name."""

from __future__ import annotations

import json

import pytest

from rigs.quantized_writer import SCHEMES, compressed_config, float_weights
from rooftree.checkpoint.hf_quantization import quantized_storage
from rooftree.errors import ModelError


@pytest.fixture
def file(tmp_path):
    return tmp_path / "config.json"


def refusal(file, **config):
    with pytest.raises(ModelError) as caught:
        quantized_storage({"quantization_config": config}, file)
    assert str(caught.value).startswith(f"{file}: quantization_config")
    return str(caught.value)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_published_configurations(file, scheme):
    found = quantized_storage({"quantization_config": SCHEMES[scheme].config}, file)
    wanted = "NVFP4" if "nvfp4" in scheme else "MXFP4" if "mxfp4" in scheme else "F8_E4M3"
    assert found.formats == {wanted}
    assert found.fp8_block == ((128, 128) if "block" in scheme or scheme[:3] in ("fp8", "mod") else None)


def test_where_the_configuration_may_stand(file):
    config = SCHEMES["fp8-block"].config
    expected = quantized_storage({"quantization_config": config}, file)
    assert quantized_storage({"compression_config": config}, file) == expected
    assert quantized_storage({"text_config": {"quantization_config": config}}, file) == expected
    assert quantized_storage({"quantization_config": None}, file) is None
    assert quantized_storage({"text_config": None}, file) is None


def test_modelopts_own_file(file):
    beside = file.with_name("hf_quant_config.json")
    beside.write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}))
    assert quantized_storage({}, file).formats == {"NVFP4"}
    assert quantized_storage({"quantization_config": SCHEMES["fp8-block"].config}, file).method == "fp8"
    beside.write_text(json.dumps({"quantization": {"quant_algo": "W4A8_AWQ"}}))
    with pytest.raises(ModelError, match=r"hf_quant_config.json: quantization.quant_algo 'W4A8_AWQ' is not"):
        quantized_storage({}, file)
    beside.write_text(json.dumps({"quantization": []}))
    with pytest.raises(ModelError, match=r"hf_quant_config.json: quantization must be an object"):
        quantized_storage({}, file)


@pytest.mark.parametrize("method", ["gptq", "awq", "bitsandbytes", "quark", "fbgemm_fp8", "torchao", "hqq"])
def test_other_methods_are_refused_by_name(file, method):
    message = refusal(file, quant_method=method, bits=4)
    assert f"quant_method '{method}' is not supported" in message
    assert "compressed-tensors, fp8, modelopt" in message


@pytest.mark.parametrize("config", [[], "fp8", 8, True])
def test_a_configuration_must_be_an_object(file, config):
    with pytest.raises(ModelError, match="quantization_config must be an object"):
        quantized_storage({"quantization_config": config}, file)


def test_the_method_must_be_told(file):
    assert "quant_method is missing" in refusal(file, bits=8)
    assert "quant_method must be a string" in refusal(file, quant_method=3)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fmt": "e5m2"}, "fmt 'e5m2' is not supported"),
        ({"expert_dtype": "fp4"}, "expert_dtype 'fp4' is not supported"),
        ({"weight_block_size": [128]}, "weight_block_size must be two sizes"),
        ({"weight_block_size": [128, 0]}, "weight_block_size must be two sizes"),
        ({"weight_block_size": [128, None]}, "weight_block_size must be two sizes"),
        ({"weight_block_size": 128}, "weight_block_size must be two sizes"),
        ({"rotation": "hadamard"}, "rotation ('hadamard') is not a known setting"),
    ],
)
def test_settings_of_fp8(file, changes, words):
    assert words in refusal(file, **SCHEMES["fp8-block"].config | changes)


@pytest.mark.parametrize(
    "algorithm",
    ["NVFP4_AWQ", "NVFP4_SVD", "W4A8_NVFP4_FP8", "W4A8_MXFP4_FP8", "MXFP8", "W4A16_AWQ", "W8A16", "INT8_X"],
)
def test_other_algorithms_of_modelopt(file, algorithm):
    message = refusal(file, quant_method="modelopt", quant_algo=algorithm)
    assert f"quant_algo '{algorithm}' is not supported; supported are FP8," in message
    layers = {"a": {"quant_algo": "FP8"}, "b": {"quant_algo": algorithm}}
    mixed = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    assert f"quantized_layers.b.quant_algo '{algorithm}'" in refusal(file, **mixed)


def test_settings_of_modelopt(file):
    assert "group_size is 32" in refusal(file, quant_method="modelopt", quant_algo="NVFP4", group_size=32)
    assert "lora_rank (16)" in refusal(file, quant_method="modelopt", quant_algo="NVFP4", lora_rank=16)
    assert "quant_algo is missing" in refusal(file, quant_method="modelopt")
    for layers in (None, [], {"a": 1}):
        message = refusal(
            file, quant_method="modelopt", quant_algo="MIXED_PRECISION", quantized_layers=layers
        )
        assert "quantized_layers must give an object" in message


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (
            float_weights(8, "group", group_size=32, scale_dtype="torch.uint8"),
            "'group' of 32 with float of 8",
        ),
        (float_weights(6, "group", group_size=32), "'group' of 32 with float of 6 bits"),
        (float_weights(4, "group", group_size=16), "'group' of 16 with float of 4 bits"),
        (float_weights(4, "tensor_group", group_size=32), "'tensor_group' of 32 with float of 4 bits"),
        (float_weights(4, "channel"), "'channel' with float of 4 bits"),
        (float_weights(8, "channel", type="int"), "'channel' with int of 8 bits is not supported"),
        ({"num_bits": 4, "group_size": 128}, "'group' of 128 with int of 4 bits is not supported"),
        (float_weights(8, "channel", symmetric=False), "symmetric is False"),
        (float_weights(8, "channel", dynamic=True), "dynamic is True"),
        (float_weights(8, "channel", sparsity="2:4"), "sparsity ('2:4') is not a known setting"),
        (float_weights(8, "block", block_structure="128"), "block_structure must be two sizes"),
        ([], "weights must be an object"),
    ],
)
def test_other_schemes_of_compressed_tensors(file, weights, words):
    config = compressed_config("float-quantized", {})
    config["config_groups"]["group_0"]["weights"] = weights
    message = refusal(file, **config)
    assert words in message
    assert "config_groups.group_0" in message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "pack-quantized"}, "format 'pack-quantized' is not supported"),
        ({"format": "int-quantized"}, "format 'int-quantized' is not supported"),
        ({"format": "marlin-24"}, "format 'marlin-24' is not supported"),
        ({"format": None}, "format is missing"),
        ({"config_groups": None}, "config_groups must be an object"),
        ({"config_groups": {"FP8_DYNAMIC": ["Linear"]}}, "config_groups.FP8_DYNAMIC must be an object"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "the format 'sparse-24-bitmask' is not"),
        ({"transform_config": {"config_groups": {"u": {}}}}, "transform_config"),
        ({"moe_sparsity_config": {"method": "prune"}}, "moe_sparsity_config"),
    ],
)
def test_settings_of_compressed_tensors(file, changes, words):
    config = SCHEMES["ct-channel"].config | changes
    assert words in refusal(file, **config)


def test_groups_of_compressed_tensors(file):
    config = compressed_config("mixed-precision", float_weights(8, "block", block_structure="128x128"))
    groups = config["config_groups"]
    groups["kv"] = {"targets": ["Attention"], "weights": None}
    groups["experts"] = {
        "targets": ["re:.*mlp.*"],
        "weights": float_weights(4, "tensor_group", group_size=16),
        "format": "nvfp4-pack-quantized",
    }
    found = quantized_storage({"quantization_config": config}, file)
    assert found.formats == {"F8_E4M3", "NVFP4"}
    assert found.fp8_block == (128, 128)
    groups["other"] = {"targets": ["x"], "weights": float_weights(8, "block", block_structure=[64, 128])}
    assert "block_structure differs" in refusal(file, **config)
    groups["other"] = {"targets": ["x"], "weights": float_weights(8, "channel"), "format": "pack-quantized"}
    assert "config_groups.other.format 'pack-quantized'" in refusal(file, **config)
    groups["other"] = {"targets": ["x"], "rotation": 1}
    assert "config_groups.other.rotation (1) is not a known" in refusal(file, **config)
