"""config.json as a spec: every architecture, every spelling of rope, and refusals that name the field."""

from __future__ import annotations

import math

import pytest

from rooftree.checkpoint.hf_config import parse_config
from rooftree.errors import ModelError
from rooftree.specs.model import RopeSpec

SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 576,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "num_hidden_layers": 30,
    "intermediate_size": 1536,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000,
    "rope_scaling": None,
    "tie_word_embeddings": True,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.42.3",
}
ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def parse(family="llama", without=(), **changes):
    document = SMOLLM2 | {"architectures": [ARCHITECTURES[family]], "model_type": family} | changes
    return parse_config({key: document[key] for key in document if key not in without}, "dir/config.json")


def refused(message, *args, **changes):
    with pytest.raises(ModelError, match=message) as caught:
        parse(*args, **changes)
    assert str(caught.value).startswith("dir/config.json: ")


def test_smollm2():
    spec = parse_config(SMOLLM2, "c")
    assert spec.num_parameters == 134_515_008
    assert spec.kv_bytes_per_token(2) == 23_040
    assert (spec.family, spec.head_dim, spec.windows) == ("llama", 64, (None,) * 30)
    assert (spec.rms_norm_eps, spec.rope, spec.max_position_embeddings) == (1e-5, RopeSpec(1e5), 8192)
    assert (spec.qkv_bias, spec.o_bias, spec.mlp_bias, spec.qk_norm) == (False,) * 4


def test_head_dim_is_the_given_one():
    dims = {"hidden_size": 5120, "num_attention_heads": 64, "num_key_value_heads": 8, "num_hidden_layers": 64}
    assert parse("qwen3", **dims, head_dim=128).kv_bytes_per_token(2) == 262_144
    assert parse("llama", **dims).head_dim == 80


def test_head_dim_that_is_null_or_absent():
    for family in ("llama", "mistral", "qwen2"):
        assert parse(family, without=["head_dim"]).head_dim == 64
    for family in ARCHITECTURES:
        assert parse(family, head_dim=None).head_dim == 64
    assert parse("qwen3").head_dim == 128


def test_key_value_heads_that_are_null_or_absent():
    for family in ARCHITECTURES:
        assert parse(family, num_key_value_heads=None).num_kv_heads == 9
        assert parse(family, without=["num_key_value_heads"]).num_kv_heads == 9


def test_fields_in_text_config_count_as_if_flat():
    nested = parse_config({"architectures": ["LlamaForCausalLM"], "text_config": SMOLLM2}, "c")
    assert nested == parse_config(SMOLLM2, "c")


def test_defaults_of_fields_that_may_be_absent():
    spec = parse(without=["rms_norm_eps", "rope_theta", "rope_scaling", "tie_word_embeddings", "hidden_act"])
    assert (spec.rms_norm_eps, spec.rope, spec.tie_word_embeddings) == (1e-6, RopeSpec(10_000.0), False)


@pytest.mark.parametrize(
    "field",
    [
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "max_position_embeddings",
    ],
)
@pytest.mark.parametrize("value", ["absent", None, 0, -1, 2.0, "8", True, [8], 2**31])
def test_needed_fields_must_be_positive_integers(field, value):
    if value == "absent":
        refused(rf"{field} is missing", without=[field])
    else:
        refused(rf"{field} (is missing|must be a positive integer)", **{field: value})


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_key_value_heads", 4, "4, which does not divide 9"),
        ("num_key_value_heads", 0, "positive integer"),
        ("num_attention_heads", 10, "does not divide"),
        ("num_hidden_layers", 100_000, "more layers than any model"),
        ("head_dim", 63, "even number"),
        ("head_dim", -64, "positive integer"),
        ("rms_norm_eps", 0, "positive number"),
        ("rms_norm_eps", math.nan, "positive number"),
        ("rms_norm_eps", "1e-5", "positive number"),
        ("rope_theta", -1.0, "positive number"),
        ("rope_theta", math.inf, "positive number"),
        ("tie_word_embeddings", "yes", "true or false"),
        ("attention_bias", 1, "true or false"),
        ("hidden_act", "gelu", "'gelu' is not supported"),
        ("hidden_act", ["silu"], "must be a string"),
    ],
)
def test_impossible_values_are_named(field, value, message):
    changes = {field: value}
    if field == "num_attention_heads":
        changes["num_key_value_heads"] = 1
    refused(rf"{field} .*{message}", **changes)


def test_a_document_that_is_no_object():
    for document in ([], "x", None, 5):
        with pytest.raises(ModelError, match="dir: must be a JSON object"):
            parse_config(document, "dir")


@pytest.mark.parametrize(
    "named",
    [["GemmaForCausalLM"], ["LlamaForSequenceClassification"], [], "LlamaForCausalLM", [5], [["x"]], {}],
)
def test_other_architectures_are_refused_by_name(named):
    refused(r"architectures .*not supported; supported are LlamaForCausalLM, Mistral", architectures=named)


def test_without_architectures_the_model_type_decides():
    assert parse("qwen3", without=["architectures"]).family == "qwen3"
    refused(r"model_type 'gemma' is not supported", without=["architectures"], model_type="gemma")
    refused(r"model_type is missing", without=["architectures", "model_type"])


def test_biases():
    spec = parse("llama", attention_bias=True, mlp_bias=True)
    assert (spec.qkv_bias, spec.o_bias, spec.mlp_bias) == (True, True, True)
    spec = parse("qwen2")
    assert (spec.qkv_bias, spec.o_bias, spec.mlp_bias, spec.qk_norm) == (True, False, False, False)
    spec = parse("qwen3", attention_bias=True)
    assert (spec.qkv_bias, spec.o_bias, spec.mlp_bias, spec.qk_norm) == (True, True, False, True)
    spec = parse("mistral", attention_bias=True)
    assert (spec.qkv_bias, spec.o_bias) == (False, False)


# Sliding windows


def test_mistral_windows():
    assert parse("mistral", sliding_window=None).windows == (None,) * 30
    assert parse("mistral", sliding_window=1024).windows == (1024,) * 30
    assert parse("mistral").windows == (4096,) * 30
    sliding = ["sliding_attention"] * 30
    assert parse("mistral", sliding_window=8, layer_types=sliding).windows == (8,) * 30
    mixed = ["full_attention", *sliding[1:]]
    refused("layer_types must agree with sliding_window", "mistral", sliding_window=8, layer_types=mixed)
    for bad in (0, -4, 4.5, "4096", False):
        refused("sliding_window must be a positive integer", "mistral", sliding_window=bad)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_qwen_windows(family):
    idle = {"sliding_window": 32768, "max_window_layers": 21, "head_dim": 64}
    assert parse(family, **idle).windows == (None,) * 30
    assert parse(family, **idle, use_sliding_window=False).windows == (None,) * 30
    assert parse(family, **idle, use_sliding_window=True).windows == (None,) * 21 + (32768,) * 9
    defaults = parse(family, use_sliding_window=True).windows
    assert defaults == (None,) * 28 + (4096,) * 2
    assert parse(family, use_sliding_window=True, sliding_window=None).windows == (None,) * 30
    assert parse(family, use_sliding_window=True, max_window_layers=0).windows == (4096,) * 30
    for bad in (-1, 2.5, "all", True):
        refused("max_window_layers must be", family, max_window_layers=bad)


def test_qwen_layer_types_decide():
    kinds = ["full_attention", "sliding_attention"] * 15
    changes = {"use_sliding_window": True, "sliding_window": 64, "layer_types": kinds}
    assert parse("qwen2", **changes).windows == (None, 64) * 15
    refused("no sliding_window is in use", "qwen2", layer_types=kinds)
    refused("has 2 entries for 30 layers", "qwen2", layer_types=kinds[:2])
    refused("must be a list of", "qwen3", layer_types=["chunked_attention"] * 30)
    refused("must be a list of", "qwen3", layer_types="full_attention")


# Rope


def rope(scaling, modern=False, **changes):
    """The RopeSpec of a scaling dictionary in the old place or, with its base, in the new one."""
    if not modern:
        return parse(rope_scaling=scaling, **changes).rope
    parameters = {("rope_type" if key == "type" else key): value for key, value in scaling.items()}
    parameters["rope_theta"] = 100_000.0
    return parse(without=["rope_theta", "rope_scaling"], rope_parameters=parameters, **changes).rope


both_places = pytest.mark.parametrize("modern", [False, True])


@both_places
def test_default_and_linear(modern):
    assert rope({"rope_type": "default"}, modern) == RopeSpec(1e5)
    assert rope({"type": "linear", "factor": 4}, modern) == RopeSpec(1e5, "linear", 4.0)
    assert rope({"rope_type": "linear", "factor": 2.5}, modern) == RopeSpec(1e5, "linear", 2.5)


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 4096,
}


@both_places
def test_llama3(modern):
    expected = RopeSpec(1e5, "llama3", 32.0, 4096, low_freq_factor=1.0, high_freq_factor=4.0)
    assert rope(LLAMA3, modern) == expected
    unknown = {key: value for key, value in LLAMA3.items() if not key.startswith("original")}
    assert rope(unknown, modern).original_max_position == 8192
    assert rope(LLAMA3, modern, original_max_position_embeddings=512).original_max_position == 512


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 2048}


@both_places
def test_yarn_and_its_defaults(modern):
    implied = 0.1 * math.log(4) + 1
    expected = RopeSpec(1e5, "yarn", 4.0, 2048, beta_fast=32.0, beta_slow=1.0, attention_factor=implied)
    assert rope(YARN, modern) == expected
    assert rope(YARN | {"beta_fast": None, "beta_slow": 0, "truncate": True}, modern) == expected
    assert rope({"type": "yarn", "factor": 4.0}, modern).original_max_position == 8192
    given = rope(YARN | {"beta_fast": 16, "beta_slow": 2, "attention_factor": 1.5}, modern)
    assert (given.beta_fast, given.beta_slow, given.attention_factor) == (16.0, 2.0, 1.5)


def test_yarn_factor_of_null_is_the_ratio_of_lengths():
    assert rope(YARN | {"factor": None}).factor == 4.0
    refused("rope_scaling.factor is missing", rope_scaling={"rope_type": "yarn"})


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({"mscale": 1.0, "mscale_all_dim": 1.0}, 1.0),
        ({"mscale": 1.0, "mscale_all_dim": 0.5}, (0.1 * math.log(4) + 1) / (0.05 * math.log(4) + 1)),
        ({"mscale": 0.7}, 0.1 * math.log(4) + 1),
        ({"mscale": 0.7, "mscale_all_dim": 0}, 0.1 * math.log(4) + 1),
        ({"mscale_all_dim": 0.7}, 0.1 * math.log(4) + 1),
        ({"mscale": 1.0, "mscale_all_dim": 0.5, "attention_factor": 2.0}, 2.0),
        ({"factor": 0.5}, 1.0),
    ],
)
def test_yarn_attention_factor(extra, expected):
    assert rope(YARN | extra).attention_factor == pytest.approx(expected, rel=1e-15)


@pytest.mark.parametrize("kind", ["dynamic", "longrope", "su", "mrope", "proportional", "ntk"])
@both_places
def test_other_types_are_refused_by_name(kind, modern):
    with pytest.raises(
        ModelError, match=rf"rope_type '{kind}' is not supported; supported are default, linear"
    ):
        rope({"rope_type": kind, "factor": 2.0}, modern)


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"type": "linear"}, "rope_scaling.factor is missing"),
        ({"type": "linear", "factor": 0}, "rope_scaling.factor must be a positive number"),
        ({"type": "linear", "factor": "2"}, "rope_scaling.factor must be a positive number"),
        ({"type": 3, "factor": 2}, "rope_scaling.type must be a string"),
        (LLAMA3 | {"low_freq_factor": 4.0}, "high_freq_factor is 4.0; it must be more"),
        (LLAMA3 | {"high_freq_factor": None}, "rope_scaling.high_freq_factor is missing"),
        (LLAMA3 | {"original_max_position_embeddings": 1.5}, "original_max_position_embeddings must be"),
        (YARN | {"truncate": False}, "rope_scaling.truncate"),
        (YARN | {"beta_fast": 0.5}, "beta_fast is 0.5"),
        (YARN | {"attention_factor": -1}, "attention_factor must be"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"full_attention": {"rope_type": "default"}}, "different rotation by layer type"),
        (["linear", 2], "rope_scaling must be an object"),
        ("linear", "rope_scaling must be an object"),
    ],
    ids=str,
)
def test_bad_scaling_names_its_field(scaling, message):
    refused(message, rope_scaling=scaling)


def test_partial_rotation_at_the_top_is_refused():
    refused("partial_rotary_factor is 0.5", partial_rotary_factor=0.5)
    assert parse(partial_rotary_factor=1.0)


def test_the_base_inside_the_parameters_comes_first():
    both = parse(rope_parameters={"rope_type": "default", "rope_theta": 7.0}, rope_theta=5.0)
    assert both.rope.theta == 7.0
    refused("rope_theta is 0.5; yarn needs more than 1", rope_scaling=YARN, rope_theta=0.5)
