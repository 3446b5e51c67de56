"""config.json of every family as an Architecture: totals, and complaints (case 20)."""

from __future__ import annotations

import contextlib
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published_configs import PUBLISHED, config

from rooftree.checkpoint.architectures.parse import FAMILIES, parse_architecture, read_architecture
from rooftree.errors import ModelError
from rooftree.specs.architecture import Architecture
from rooftree.specs.attention import Attention, LatentAttention
from rooftree.specs.feed_forward import DenseFeedForward, ExpertFeedForward
from rooftree.specs.recurrent import GatedDeltaNet, LightningAttention, Mamba, Mamba2


def parse(name: str, **over: Any) -> Architecture:
    return parse_architecture(config(name, **over), name)


def refuses(document: object, *words: str) -> None:
    with pytest.raises(ModelError) as error:
        parse_architecture(document, "config.json")
    for word in ("config.json", *words):
        assert word in str(error.value)


@pytest.mark.parametrize("name", PUBLISHED)
def test_totals_are_the_published_ones(name: str):
    architecture = parse(name)
    published = PUBLISHED[name]
    assert architecture.num_parameters == published.parameters
    assert architecture.num_parameters_active == published.active
    assert architecture.kv_bytes_per_token() == published.kv_bytes_per_token
    assert sum(architecture.parameters_by_role().values()) == published.parameters


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("smollm2-135m", 134_515_008),
        ("llama-2-7b", 6_738_415_616),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3.1-70b", 70_553_706_496),
        ("mistral-7b", 7_241_732_096),
        ("mixtral-8x7b", 46_702_792_704),
        ("qwen2-7b", 7_615_616_512),
        ("qwen3-8b", 8_190_735_360),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("gemma-2-9b", 9_241_705_984),
        ("gemma-3-1b", 999_885_952),
        ("deepseek-v3", 671_026_419_200),
        ("gpt-oss-120b", 116_829_156_672),
        ("bloom", 176_247_271_424),
    ],
)
def test_totals_written_out(name: str, parameters: int):
    assert parse(name).num_parameters == parameters


def test_every_family_has_a_published_model():
    tested = {entry.config["model_type"] for entry in PUBLISHED.values()} | {"minimax"}
    # Made of the same parts as their siblings.
    assert set(FAMILIES) - tested <= {"ministral", "ministral3", "granitemoeshared", "qwen3_5_moe_text"}


# Case 20.


def test_a_head_dim_is_read_not_derived():
    assert parse("qwen3-32b").kv_bytes_per_token() == 262_144


def test_b_tied_head_is_counted_once():
    tied = parse("smollm2-135m")
    assert tied.num_parameters == 134_515_008
    assert tied.kv_bytes_per_token() == 23_040
    assert parse("smollm2-135m", tie_word_embeddings=False).num_parameters == 162_826_560


def test_c_all_experts_are_resident_and_few_active():
    mixtral = parse("mixtral-8x7b")
    assert mixtral.num_parameters == 46_702_792_704
    assert mixtral.num_parameters_active == 12_879_925_248
    assert mixtral.weight_bytes() == 2 * 46_702_792_704


@pytest.mark.parametrize("given_head_dim", [None, ...])
def test_d_no_head_dim_means_hidden_over_heads(given_head_dim: Any):
    architecture = parse("llama-3-8b", head_dim=given_head_dim)
    mixer = architecture.layers[0].mixer
    assert isinstance(mixer, Attention)
    assert mixer.head_dim == 128


@pytest.mark.parametrize("given_kv_heads", [None, ...])
def test_e_no_kv_heads_means_as_many_as_heads(given_kv_heads: Any):
    assert parse("llama-2-7b", num_key_value_heads=given_kv_heads).kv_bytes_per_token() == 524_288


def test_f_nested_text_config_reads_as_if_flat():
    flat = parse("mixtral-8x7b")
    nested = parse_architecture({"model_type": "some_wrapper", "text_config": config("mixtral-8x7b")}, "x")
    outer_names = parse_architecture(
        {"model_type": "mixtral", "text_config": config("mixtral-8x7b", model_type=...)}, "x"
    )
    assert nested.layers == flat.layers
    assert nested.num_parameters == outer_names.num_parameters == flat.num_parameters
    assert nested.notes == ()


# Families.


def mixers(architecture: Architecture) -> list[str]:
    return [type(layer.mixer).__name__ for layer in architecture.layers]


def windows(architecture: Architecture) -> list[int | None]:
    return [layer.mixer.window for layer in architecture.layers]  # type: ignore[union-attr]


def test_falcon_7b_has_one_kv_head():
    falcon = parse("falcon-7b")
    mixer = falcon.layers[0].mixer
    assert isinstance(mixer, Attention)
    assert (mixer.num_heads, mixer.num_kv_heads, mixer.head_dim) == (71, 1, 64)
    # 71 times as much is what counting its query heads gives.
    assert falcon.kv_bytes_per_token() == 8_192
    assert parse("falcon-7b", multi_query=False).kv_bytes_per_token() == 71 * 8_192


def test_falcon_under_its_first_names():
    old = config("falcon-7b", model_type="RefinedWebModel", hidden_size=..., n_embed=4544)
    old |= {"num_hidden_layers": None, "n_layer": 32, "num_attention_heads": None, "n_head": 71}
    assert parse_architecture(old, "x").num_parameters == PUBLISHED["falcon-7b"].parameters


def test_latent_attention():
    deepseek = parse("deepseek-v3")
    mixer = deepseek.layers[0].mixer
    assert isinstance(mixer, LatentAttention)
    assert deepseek.kv_bytes_per_token() == 70_272
    assert deepseek.kv_bytes_per_token(tensor_parallel=8) == 70_272
    kinds = [type(layer.feed_forward) for layer in deepseek.layers]
    assert kinds == [DenseFeedForward] * 3 + [ExpertFeedForward] * 58
    assert "multi-token" in deepseek.notes[0]


@pytest.mark.parametrize(
    ("name", "window", "full"),
    [("gemma-2-9b", 4096, 21), ("gemma-3-1b", 512, 4), ("gpt-oss-120b", 128, 18), ("mistral-7b", 4096, 0)],
)
def test_windows(name: str, window: int, full: int):
    seen = windows(parse(name))
    assert seen.count(None) == full
    assert set(seen) - {None} == {window}


def test_alternating_windows_without_layer_types_are_the_same():
    listed = parse("gpt-oss-20b")
    assert windows(parse("gpt-oss-20b", layer_types=...)) == windows(listed)
    assert windows(listed)[:2] == [128, None]
    assert windows(parse("gemma-3-1b"))[4:7] == [512, None, 512]


def test_qwen_windows_only_where_in_use():
    assert set(windows(parse("qwen2-7b"))) == {None}
    used = parse("qwen2-7b", use_sliding_window=True, sliding_window=1000, max_window_layers=20)
    assert windows(used) == [None] * 20 + [1000] * 8


def test_llama_4_chunks_three_layers_of_four():
    scout, maverick = parse("llama-4-scout"), parse("llama-4-maverick")
    assert windows(scout)[:5] == [8192, 8192, 8192, None, 8192]
    assert scout.layers[0].mixer.window_kind == "chunked"  # type: ignore[union-attr]
    kinds = [type(layer.feed_forward) for layer in maverick.layers]
    assert kinds == [DenseFeedForward, ExpertFeedForward] * 24


def test_gemma_3_dimensions_of_the_class():
    four = parse("gemma-3-4b-text")
    assert four.vocab_size == 262_208
    assert four.max_positions == 131_072
    assert any("num_attention_heads" in note for note in four.notes)


def test_hybrids_by_layer():
    assert mixers(parse("jamba-v0.1")).count("Attention") == 4
    assert [index for index, kind in enumerate(mixers(parse("jamba-v0.1"))) if kind == "Attention"] == [
        4,
        12,
        20,
        28,
    ]
    assert mixers(parse("qwen3-next-80b-a3b"))[:4] == ["GatedDeltaNet"] * 3 + ["Attention"]
    assert mixers(parse("minimax-text-01"))[:8] == ["LightningAttention"] * 7 + ["Attention"]
    nemotron = parse("nemotron-h-8b")
    assert mixers(nemotron)[:9] == [*["Mamba2", "NoneType"] * 3, "Mamba2", "Attention", "NoneType"]
    assert mixers(nemotron).count("Attention") == 4
    assert [layer.feed_forward is None for layer in nemotron.layers[:3]] == [True, False, True]


def test_nemotron_layers_as_words_give_their_number():
    words = {"M": "mamba", "-": "mlp", "*": "attention", "E": "moe"}
    for name in ("nemotron-h-8b", "nemotron-3-nano-30b"):
        listed = [words[letter] for letter in PUBLISHED[name].config["hybrid_override_pattern"]]
        spelt = parse(name, hybrid_override_pattern=..., layers_block_type=listed, num_hidden_layers=...)
        assert spelt.layers == parse(name).layers


def test_state_per_sequence():
    """Of a running Qwen3.6-27B: 65,536 B of KV per token, and 149.6 MiB of fp32 states per sequence."""
    qwen = parse("qwen3.5-27b")
    assert qwen.kv_bytes_per_token() == 65_536
    assert qwen.state_bytes_per_sequence("fp32") == 48 * 4 * (48 * 128 * 128 + 10_240 * 3)
    assert round(qwen.state_bytes_per_sequence("fp32") / 2**20, 1) == 149.6
    assert parse("mamba-2.8b").kv_bytes_per_token() == 0
    assert parse("mamba-2.8b").state_bytes_per_sequence("bf16") == 64 * 5120 * (3 * 2 + 16 * 4)
    assert parse("llama-3-8b").state_bytes_per_sequence() == 0


def test_dtype_of_states_is_read():
    assert parse("nemotron-h-8b", mamba_ssm_cache_dtype="bfloat16").recurrent_dtype == "bf16"
    assert parse("nemotron-h-8b").recurrent_dtype == "fp32"


def test_recurrent_parts_by_kind():
    kinds = {type(layer.mixer) for name in PUBLISHED for layer in parse(name).layers}
    assert kinds == {Attention, LatentAttention, Mamba, Mamba2, GatedDeltaNet, LightningAttention, type(None)}


def test_equal_layers_are_one_instance():
    llama = parse("llama-3.1-405b")
    assert len({id(layer) for layer in llama.layers}) == 1
    assert llama.layer_groups() == ((llama.layers[0], 126),)


# Names.


def test_class_names_are_known_without_a_model_type():
    named = config("llama-2-7b", model_type=..., architectures=["LlamaForCausalLM"])
    assert parse_architecture(named, "x").name == "LlamaForCausalLM"


def test_unknown_names_are_counted_as_llama_with_a_note():
    strange = parse("llama-2-7b", model_type="marvel", architectures=["MarvelForCausalLM"])
    assert strange.num_parameters == 6_738_415_616
    assert "MarvelForCausalLM" in strange.notes[0]
    assert "Llama-like" in strange.notes[0]
    unnamed = parse("mixtral-8x7b", model_type=...)
    assert unnamed.num_parameters == 46_702_792_704
    assert "names no architecture" in unnamed.notes[0]


@pytest.mark.parametrize(
    "over",
    [{"kv_lora_rank": 512}, {"num_experts": 8}, {"mamba_d_state": 16}, {"linear_num_key_heads": 4}],
)
def test_unknown_names_with_strange_keys_are_refused(over: dict[str, Any]):
    refuses(config("llama-2-7b", model_type="marvel", **over), "model_type", "marvel", *over, "deepseek_v3")


def test_towers_are_named():
    document = {
        "model_type": "gemma3",
        "text_config": config("gemma-3-1b"),
        "vision_config": {"hidden_size": 9},
    }
    assert "not counted: the vision tower" in parse_architecture(document, "x").notes


# Complaints.


@pytest.mark.parametrize("document", [None, [], "llama", 3])
def test_not_an_object(document: object):
    refuses(document, "JSON object")


@pytest.mark.parametrize(
    "name", ["llama-2-7b", "deepseek-v3", "qwen3-next-80b-a3b", "falcon-7b", "jamba-v0.1"]
)
@pytest.mark.parametrize("bad", [..., None, 0, -1, 1.5, "many", True, [], 2**40])
@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_needed_dimensions(name: str, field: str, bad: Any):
    refuses(config(name, **{field: bad}), field)


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("llama-2-7b", "intermediate_size"),
        ("opt-125m", "max_position_embeddings"),
        ("mixtral-8x7b", "num_experts_per_tok"),
        ("qwen3-30b-a3b", "moe_intermediate_size"),
        ("qwen3-30b-a3b", "num_experts"),
        ("deepseek-v3", "kv_lora_rank"),
        ("deepseek-v3", "v_head_dim"),
        ("deepseek-v3", "n_routed_experts"),
        ("deepseek-v3", "first_k_dense_replace"),
        ("deepseek-v3", "n_shared_experts"),
        ("glm-4.5", "n_shared_experts"),
        ("qwen1.5-moe-a2.7b", "shared_expert_intermediate_size"),
        ("qwen3-next-80b-a3b", "shared_expert_intermediate_size"),
        ("granite-4.0-h-tiny", "shared_intermediate_size"),
        ("gemma-2-9b", "sliding_window"),
        ("opt-125m", "ffn_dim"),
        ("jamba-v0.1", "attn_layer_period"),
        ("jamba-v0.1", "mamba_dt_rank"),
        ("mamba-2.8b", "state_size"),
        ("nemotron-h-8b", "hybrid_override_pattern"),
        ("nemotron-h-8b", "mamba_num_heads"),
        ("granite-4.0-h-tiny", "layer_types"),
        ("qwen3-next-80b-a3b", "linear_num_value_heads"),
    ],
)
def test_needed_fields_of_families(name: str, field: str):
    refuses(
        config(name, **{field: ...}), field if field != "hybrid_override_pattern" else "layers_block_type"
    )


@pytest.mark.parametrize(
    ("name", "over", "word"),
    [
        ("llama-3-8b", {"num_key_value_heads": 7}, "num_key_value_heads"),
        ("llama-3-8b", {"num_attention_heads": 33, "num_key_value_heads": 33}, "num_attention_heads"),
        ("llama-3-8b", {"tie_word_embeddings": "yes"}, "tie_word_embeddings"),
        ("llama-3-8b", {"torch_dtype": "int3"}, "torch_dtype"),
        ("mixtral-8x7b", {"num_experts_per_tok": 9}, "num_experts_per_tok"),
        ("gpt-oss-20b", {"layer_types": ["full_attention"]}, "layer_types"),
        ("gpt-oss-20b", {"layer_types": ["sideways"] * 24}, "layer_types"),
        ("qwen3-30b-a3b", {"mlp_only_layers": [48]}, "mlp_only_layers"),
        ("nemotron-h-8b", {"hybrid_override_pattern": "MXM"}, "hybrid_override_pattern"),
        ("nemotron-h-8b", {"hybrid_override_pattern": "M*-"}, "hybrid_override_pattern"),
        ("mamba-codestral-7b", {"num_heads": 3}, "num_heads"),
        ("falcon-40b", {"num_kv_heads": 3}, "num_kv_heads"),
        ("nemotron-h-8b", {"mamba_ssm_cache_dtype": "int4"}, "mamba_ssm_cache_dtype"),
    ],
)
def test_impossible_values(name: str, over: dict[str, Any], word: str):
    refuses(config(name, **over), word)


@pytest.mark.parametrize(
    "name", {entry.config.get("model_type"): name for name, entry in PUBLISHED.items()}.values()
)
def test_impossible_numbers_are_refused_by_name_or_count_nothing(name: str):
    """Every whole number of every family: no other value than one that is possible changes a count."""
    whole = [key for key, value in PUBLISHED[name].config.items() if type(value) is int]
    for field, bad in itertools.product(whole, (-3, 0.5, "x", [])):
        assert _said(name, field, bad) in ("refused by name", "counted as before"), (field, bad)


def _said(name: str, field: str, bad: object) -> str:
    try:
        return "counted as before" if parse(name, **{field: bad}) == parse(name) else "counted otherwise"
    except ModelError as error:
        return "refused by name" if field in str(error) else str(error)


def test_no_shared_experts_may_be_said_outright():
    without = parse("deepseek-v2", n_shared_experts=None)
    assert without == parse("deepseek-v2", n_shared_experts=0)
    assert without.num_parameters < parse("deepseek-v2").num_parameters


def test_missing_context_is_said():
    architecture = parse("llama-3-8b", max_position_embeddings=...)
    assert architecture.max_positions is None
    assert architecture.num_parameters == 8_030_261_248
    assert "max_position_embeddings" in architecture.notes[0]


def test_missing_dtype_is_said():
    assert any("torch_dtype" in note for note in parse("llama-3-8b", torch_dtype=...).notes)
    assert parse("llama-3-8b", torch_dtype=..., dtype="float32").weight_bytes() == 4 * 8_030_261_248


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**33) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=5,
)


@given(st.sampled_from(sorted(PUBLISHED)), st.data())
def test_any_field_of_any_value_counts_or_is_refused(name: str, data: st.DataObject):
    field = data.draw(st.sampled_from(sorted(PUBLISHED[name].config)))
    document = config(name, **{field: data.draw(_JSON)})
    with contextlib.suppress(ModelError):
        architecture = parse_architecture(document, "config.json")
        assert architecture.num_parameters >= architecture.num_parameters_active > 0


def test_reads_a_directory_and_a_file(tmp_path: Path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config("llama-2-7b")))
    assert read_architecture(tmp_path) == read_architecture(file)
    with pytest.raises(ModelError, match=r"config\.json"):
        read_architecture(tmp_path / "nowhere" / "config.json")
