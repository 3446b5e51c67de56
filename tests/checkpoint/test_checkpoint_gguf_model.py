"""GGUF metadata as a spec: defaults, rope in all its keys, and features that are refused by name."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from rigs.gguf_writer import GgufTensor, Typed, interleave_rotary_rows
from rigs.models import gguf_metadata, gguf_name, random_weights, tiny_spec, write_gguf_model
from rooftree.checkpoint.base import Tensor
from rooftree.checkpoint.formats import dequantize, quantize
from rooftree.checkpoint.gguf import read_gguf
from rooftree.checkpoint.gguf_model import canonical_name, gguf_spec
from rooftree.checkpoint.layout import tensor_shapes
from rooftree.checkpoint.rotary import half_split
from rooftree.errors import ModelError
from rooftree.specs.model import RopeSpec

SPEC = tiny_spec("llama", vocab_size=300, num_layers=1)
WEIGHTS = random_weights(SPEC)


@pytest.fixture
def spec_with(tmp_path):
    """The spec of a tiny llama file whose metadata has some keys replaced; None removes a key."""

    def read(**changes):
        metadata = {key.replace("__", "."): value for key, value in changes.items()}
        removed = {key for key, value in metadata.items() if value is None}
        kept = {key: value for key, value in metadata.items() if value is not None}
        path = write_gguf_model(tmp_path / "m.gguf", SPEC, WEIGHTS, metadata=kept)
        file = read_gguf(path)
        for key in removed:
            del file.metadata[key]
        return gguf_spec(file)

    return read


def refused(spec_with, message, **changes):
    with pytest.raises(ModelError, match=message) as caught:
        spec_with(**changes)
    assert "m.gguf: " in str(caught.value)


def test_names_of_all_families_map_both_ways():
    for family in ("llama", "qwen2", "qwen3"):
        spec = tiny_spec(family, num_layers=12, o_bias=True, mlp_bias=True)
        for name in tensor_shapes(spec):
            assert canonical_name(gguf_name(name)) == name
    for odd in ("rope_freqs.weight", "blk.0.unknown.weight", "plain", "blk.x", "token_embd"):
        assert canonical_name(odd) == odd
    assert canonical_name("blk.007.attn_q.weight") == "model.layers.007.self_attn.q_proj.weight"


def test_keys_that_may_be_absent(spec_with):
    spec = spec_with(
        llama__attention__head_count_kv=None,
        llama__attention__key_length=None,
        llama__attention__value_length=None,
        llama__rope__dimension_count=None,
        llama__rope__freq_base=None,
        llama__vocab_size=None,
    )
    assert (spec.num_kv_heads, spec.head_dim, spec.rope) == (4, 16, RopeSpec(theta=10_000.0))
    assert spec.vocab_size == 300


@pytest.mark.parametrize(
    "key",
    [
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention__head_count",
        "attention__layer_norm_rms_epsilon",
    ],
)
def test_keys_that_may_not_be_absent(spec_with, key):
    refused(spec_with, rf"llama.{key.replace('__', '.')} is missing", **{f"llama__{key}": None})


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("block_count", 0, "positive integer, not 0"),
        ("block_count", 2**31, "positive integer"),
        ("block_count", 10_001, "more layers"),
        ("block_count", "30", "positive integer, not '30'"),
        ("embedding_length", Typed("i32", -64), "not -64"),
        ("attention__head_count_kv", 3, "3, which does not divide 4"),
        ("attention__head_count_kv", [2, 4], "differs from layer to layer"),
        ("attention__head_count_kv", [0, 0], "positive integer, not 0"),
        ("attention__key_length", 15, "even number"),
        ("attention__value_length", 32, "only that of the key heads, 16"),
        ("rope__dimension_count", 8, "only that of the key heads, 16"),
        ("attention__layer_norm_rms_epsilon", math.nan, "positive number"),
        ("attention__layer_norm_rms_epsilon", 0.0, "positive number"),
        ("rope__freq_base", math.inf, "positive number"),
        ("context_length", True, "positive integer"),
    ],
)
def test_impossible_numbers_are_named(spec_with, key, value, message):
    refused(spec_with, rf"llama.{key.replace('__', '.')} .*{message}", **{f"llama__{key}": value})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("expert_count", 8),
        ("attention__clamp_kqv", 8.0),
        ("attention__max_alibi_bias", 8.0),
        ("attention__scale", 0.5),
        ("attn_logit_softcapping", 50.0),
        ("final_logit_softcapping", 30.0),
        ("logit_scale", 0.0625),
        ("attention__causal", False),
        ("attention__sliding_window_pattern", [True, False]),
        ("rope__dimension_sections", Typed("i32", [16, 24, 24, 0])),
    ],
)
def test_features_that_would_change_the_result_are_refused_by_key(spec_with, key, value):
    refused(spec_with, rf"llama.{key.replace('__', '.')} is .*not supported", **{f"llama__{key}": value})


def test_heads_that_do_not_divide_the_embedding(spec_with):
    heads = {"llama__attention__head_count": 5, "llama__attention__head_count_kv": 1}
    message = r"llama.attention.head_count is 5, which does not divide embedding_length 64"
    refused(spec_with, message, **heads, llama__attention__key_length=None)


def test_neutral_values_of_such_keys_are_fine(spec_with):
    assert spec_with(llama__expert_count=0, llama__attention__causal=True, llama__logit_scale=1.0)


def test_equal_counts_in_every_layer_are_one_count(spec_with):
    assert spec_with(llama__attention__head_count_kv=[2, 2]).num_kv_heads == 2


@pytest.mark.parametrize("architecture", ["gemma3", "phi3", "mamba", "", 7])
def test_other_architectures_are_refused_by_name(spec_with, architecture):
    refused(spec_with, rf"general.architecture .*{architecture}", general__architecture=architecture)


def test_parts_of_a_model_are_refused(spec_with):
    refused(spec_with, r"split.count is 3", split__count=Typed("u16", 3))
    refused(spec_with, r"general.type is 'adapter'", general__type="adapter")
    assert spec_with(split__count=Typed("u16", 1), general__type="model")


def test_a_vocabulary_that_does_not_match_the_embedding(spec_with):
    message = r"'token_embd.weight': has 300 rows for 2 tokenizer.ggml.tokens"
    refused(spec_with, message, tokenizer__ggml__tokens=["a", "b"])


def test_a_sliding_window_holds_in_every_layer(spec_with):
    spec = spec_with(llama__attention__sliding_window=128)
    assert (spec.family, spec.windows) == ("mistral", (128,))
    spec = spec_with(llama__attention__sliding_window=0)
    assert (spec.family, spec.windows) == ("llama", (None,))


# Rope


def rope_of(spec_with, **keys):
    return spec_with(**{f"llama__rope__{key}": value for key, value in keys.items()}).rope


def test_linear_scaling_in_every_spelling(spec_with):
    linear = RopeSpec(10_000.0, "linear", 4.0)
    assert rope_of(spec_with, scaling__type="linear", scaling__factor=4.0) == linear
    assert rope_of(spec_with, scaling__factor=4.0) == linear
    assert rope_of(spec_with, scale_linear=4.0) == linear
    for unscaled in ({"scaling__type": "none", "scaling__factor": 4.0}, {"scaling__factor": 0.0}, {}):
        assert rope_of(spec_with, **unscaled) == RopeSpec(10_000.0)


def test_yarn(spec_with):
    scaling = {"scaling__type": "yarn", "scaling__factor": 4.0}
    implied = 0.1 * math.log(4) + 1
    assert rope_of(spec_with, **scaling) == RopeSpec(
        10_000.0, "yarn", 4.0, original_max_position=512, attention_factor=implied
    )
    rope = rope_of(
        spec_with,
        **scaling,
        scaling__original_context_length=128,
        scaling__attn_factor=0.5,
        scaling__yarn_beta_fast=16.0,
        scaling__yarn_beta_slow=2.0,
        scaling__yarn_ext_factor=1.0,
    )
    assert (rope.original_max_position, rope.beta_fast, rope.beta_slow) == (128, 16.0, 2.0)
    assert rope.attention_factor == 0.5 * implied
    rope = rope_of(spec_with, **scaling, scaling__yarn_log_multiplier=0.5)
    assert rope.attention_factor == pytest.approx(implied / (0.05 * math.log(4) + 1), rel=1e-12)
    assert rope_of(spec_with, **scaling, scaling__yarn_log_multiplier=0.0).attention_factor == implied


def test_rope_that_is_not_supported(spec_with):
    refused(spec_with, r"scaling.type 'longrope'", llama__rope__scaling__type="longrope")
    yarn = {"llama__rope__scaling__type": "yarn", "llama__rope__scaling__factor": 2.0}
    refused(spec_with, r"yarn_ext_factor is 0.5", **yarn, llama__rope__scaling__yarn_ext_factor=0.5)
    refused(spec_with, r"yarn_attn_factor is 2.0", **yarn, llama__rope__scaling__yarn_attn_factor=2.0)
    refused(spec_with, r"attn_factor is supported with yarn", llama__rope__scaling__attn_factor=2.0)


def with_freqs(tmp_path, factors, **spec):
    rope = RopeSpec(500_000.0, freq_factors=factors)
    tiny = tiny_spec("llama", vocab_size=300, rope=rope, **spec)
    return read_gguf(write_gguf_model(tmp_path / "m.gguf", tiny, random_weights(tiny)))


def test_rope_freqs_become_frequency_factors(tmp_path):
    factors = (1.0, 1.0, 1.0, 2.5, 8.0, 32.0, 32.0, 32.0)
    assert gguf_spec(with_freqs(tmp_path, factors)).rope == RopeSpec(500_000.0, freq_factors=factors)


def test_rope_freqs_that_cannot_be(tmp_path):
    for factors in ((1.0,) * 16, (1.0,) * 7 + (0.0,), (1.0,) * 7 + (math.nan,), (math.inf,) * 8):
        with pytest.raises(ModelError, match=r"m.gguf: tensor 'rope_freqs.weight'"):
            gguf_spec(with_freqs(tmp_path, factors))
    file = with_freqs(tmp_path, (2.0,) * 8)
    file.metadata["llama.rope.scaling.type"] = "yarn"
    with pytest.raises(ModelError, match=r"'yarn' together with the tensor rope_freqs"):
        gguf_spec(file)


# Row order


@pytest.mark.parametrize("dtype", ["F32", "Q4_0", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"])
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_half_split_order_undoes_the_interleaving(dtype, heads):
    rows = np.random.default_rng(0).standard_normal((32, 256)).astype(np.float32)
    written = quantize(dtype, interleave_rotary_rows(rows, heads))
    tensor = half_split(Tensor("q", rows.shape, dtype, written, "here"), heads)
    assert tensor.data.tobytes() == quantize(dtype, rows).tobytes()
    assert tensor.num_bytes == written.nbytes
    assert (tensor.name, tensor.shape, tensor.dtype, tensor.source) == ("q", (32, 256), dtype, "here")
    assert isinstance(tensor, Tensor)


def test_stored_row_2i_plus_s_is_row_i_of_half_s():
    stored = np.repeat(np.arange(8, dtype=np.float32), 32).reshape(8, 32)
    tensor = half_split(Tensor("k", (8, 32), "F32", quantize("F32", stored), ""), 2)
    assert dequantize(tensor)[:, 0].tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    bias = half_split(Tensor("b", (8,), "F32", quantize("F32", np.arange(8.0)), ""), 1)
    assert dequantize(bias).tolist() == [0, 2, 4, 6, 1, 3, 5, 7]


def test_the_rig_writes_every_key_that_the_converter_would():
    keys = gguf_metadata(tiny_spec("mistral"))
    assert keys["general.architecture"] == "llama"
    assert keys["llama.attention.sliding_window"] == 24
    assert not [key for key in keys if not re.match(r"(general|llama)\.", key)]
    assert GgufTensor("t", (1,), 0, b"").offset is None
