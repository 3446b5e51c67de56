"""Counting: parameters, weight bytes, KV and state, by layer, by device."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rigs.models import FAMILIES, tiny_spec
from rooftree.errors import ConfigError
from rooftree.specs.architecture import Architecture, LayerSpec, Mixer
from rooftree.specs.attention import Attention, LatentAttention
from rooftree.specs.feed_forward import DenseFeedForward, ExpertFeedForward, FeedForward
from rooftree.specs.model_architecture import architecture_of
from rooftree.specs.outside import outside_weights
from rooftree.specs.recurrent import GatedDeltaNet, LightningAttention, Mamba, Mamba2
from rooftree.specs.weight import Weight, norm
from rooftree.specs.weight_scheme import named_scheme, uniform

GQA = Attention(num_heads=32, num_kv_heads=8, head_dim=64)
MLA = LatentAttention(
    num_heads=128,
    kv_lora_rank=512,
    qk_nope_head_dim=128,
    qk_rope_head_dim=64,
    v_head_dim=128,
    q_lora_rank=1536,
)
RECURRENT = [
    Mamba(inner=512, state=16, conv_kernel=4, dt_rank=16),
    Mamba2(num_heads=8, head_dim=64, state=128, groups=2, conv_kernel=4),
    GatedDeltaNet(num_key_heads=4, num_value_heads=8, key_head_dim=32, value_head_dim=64, conv_kernel=4),
    LightningAttention(num_heads=8, head_dim=64),
]


def model(*mixers: Mixer | None, hidden: int = 256, network: FeedForward | None = None) -> Architecture:
    """One layer for each mixer."""
    norms = norm("input_layernorm", hidden)
    return Architecture(
        name="made up",
        vocab_size=1000,
        hidden_size=hidden,
        tied_head=False,
        layers=tuple(LayerSpec(mixer, network or DenseFeedForward(512), norms) for mixer in mixers),
        outside=outside_weights(1000, hidden, tied=False),
        max_positions=4096,
        dtype="bf16",
        scheme=uniform("bf16"),
    )


# Models the engine runs.


@pytest.mark.parametrize("family", FAMILIES)
def test_architecture_of_a_model_spec_counts_the_same(family: str):
    spec = tiny_spec(family)
    architecture = architecture_of(spec, dtype="fp32")
    assert architecture.num_parameters == architecture.num_parameters_active == spec.num_parameters
    assert architecture.weight_bytes() == 4 * spec.num_parameters
    assert architecture.kv_bytes_per_token("fp16") == spec.kv_bytes_per_token(2)
    assert [layer.mixer.window for layer in architecture.layers] == list(spec.windows)  # type: ignore[union-attr]


# KV.


@pytest.mark.parametrize(("dtype", "per_token"), [("bf16", 524_288), ("fp8", 262_144), ("fp32", 1_048_576)])
def test_kv_of_llama_2_7b(dtype: str, per_token: int):
    llama = model(*[Attention(32, 32, 128)] * 32)
    assert llama.kv_bytes_per_token(dtype) == per_token


def test_kv_figures_of_the_sizing_examples():
    llama = model(*[Attention(32, 32, 128)] * 32)
    assert llama.kv_bytes(2048) == 1_073_741_824
    assert 16 * llama.kv_bytes(4096) == 32 * 2**30
    large = model(*[Attention(64, 8, 128)] * 80)
    assert large.kv_bytes_per_token() == 327_680
    assert large.kv_bytes(131_072) == 42_949_672_960


def test_block_formats_of_kv():
    llama = model(*[Attention(32, 8, 128)] * 32)
    assert llama.kv_bytes_per_token("q8_0") == 32 * 2048 * 34 // 32
    assert llama.kv_bytes_per_token("q4_0") == 32 * 2048 * 18 // 32
    # Rooftree's own 8-bit cache: head_dim + 4 bytes where fp16 needs 2 x head_dim.
    assert llama.kv_bytes_per_token("fp8-per-head") == 32 * 2 * 8 * (128 + 4)
    assert llama.kv_bytes_per_token("int8-per-head", tensor_parallel=4) == 32 * 2 * 2 * (128 + 4)
    with pytest.raises(ConfigError, match="int5"):
        llama.kv_bytes_per_token("int5")


def test_windows_are_counted_as_kept_and_as_freed():
    """A window of 128 on 18 of 36 layers with 8 KV heads of 64."""
    windowed = Attention(64, 8, 64, window=128)
    mixed = model(*[windowed, Attention(64, 8, 64)] * 18)
    per_layer = 2 * 8 * 64 * 2
    assert mixed.kv_bytes_per_token() == 36 * per_layer == 73_728
    assert mixed.kv_bytes(10_000) == 737_280_000
    assert mixed.kv_bytes(10_000, windowed=True) == 18 * per_layer * 10_000 + 18 * per_layer * 128
    assert mixed.kv_bytes(100, windowed=True) == mixed.kv_bytes(100)
    assert mixed.kv_bytes(0) == 0


@given(st.integers(0, 10**6), st.integers(1, 10**5), st.sampled_from(["sliding", "chunked"]))
def test_freeing_windows_never_costs_more(tokens: int, window: int, kind: str):
    windowed = model(Attention(8, 2, 64, window=window, window_kind=kind), GQA)  # type: ignore[arg-type]
    freed, kept = windowed.kv_bytes(tokens, windowed=True), windowed.kv_bytes(tokens)
    assert freed <= kept
    assert (freed == kept) == (tokens <= window)


def test_latents_are_replicated_and_heads_are_cut():
    latent = model(*[MLA] * 61)
    assert latent.kv_bytes_per_token() == 70_272
    assert [latent.kv_bytes_per_token(tensor_parallel=n) for n in (2, 8, 64)] == [70_272] * 3
    grouped = model(GQA)
    per_head = 2 * 64 * 2
    shares = [grouped.kv_bytes_per_token(tensor_parallel=n) // per_head for n in (1, 2, 3, 8, 16)]
    assert shares == [8, 4, 3, 1, 1]


# Weights by device.


@pytest.mark.parametrize("mixer", [GQA, MLA, Attention(12, 1, 64, qk_norm="head"), *RECURRENT])
@pytest.mark.parametrize("devices", [1, 2, 3, 4, 8, 64])
def test_no_weight_is_lost_between_devices(mixer: Mixer, devices: int):
    whole = model(mixer)
    share = whole.weight_bytes(tensor_parallel=devices)
    assert share * devices >= whole.weight_bytes()
    assert share <= whole.weight_bytes()
    assert (share == whole.weight_bytes()) == (devices == 1)


def test_kv_projections_are_replicated_beyond_their_heads():
    stored = {s.weight.name: s for s in model(GQA).stored() if s.layer == 0}
    key, query = stored["self_attn.k_proj.weight"], stored["self_attn.q_proj.weight"]
    assert key.device_bytes(8) == key.device_bytes(32) == key.num_bytes // 8
    assert query.device_bytes(32) == query.num_bytes // 32
    assert stored["input_layernorm.weight"].device_bytes(8) == 2 * 256


def test_experts_are_dealt_whole_under_expert_parallelism():
    experts = ExpertFeedForward(experts=64, active=4, intermediate=512, shared_intermediate=1024)
    stored = {s.weight.name: s for s in model(GQA, network=experts).stored() if s.layer == 0}
    routed, shared = stored["mlp.experts.{}.up_proj.weight"], stored["mlp.shared_experts.up_proj.weight"]
    one = 512 * 256 * 2
    assert routed.num_bytes == one
    assert routed.device_bytes() == 64 * one
    assert routed.device_bytes(tensor_parallel=8) == 8 * one
    assert routed.device_bytes(tensor_parallel=8, expert_parallel=8) == 8 * one
    assert routed.device_bytes(tensor_parallel=1, expert_parallel=5) == 13 * one
    assert shared.device_bytes(tensor_parallel=8, expert_parallel=8) == 2 * one // 8


def test_layers_and_roles_add_up():
    mixed = model(GQA, MLA, *RECURRENT, None)
    for scheme in (None, named_scheme("fp8-block"), named_scheme("q4_k"), named_scheme("nvfp4")):
        total = mixed.weight_bytes(scheme)
        outside = sum(s.device_bytes() for s in mixed.stored(scheme) if s.layer is None)
        assert sum(mixed.layer_weight_bytes(scheme)) + outside == total
        assert sum(mixed.weight_bytes_by_role(scheme).values()) == total
    assert sum(mixed.parameters_by_role().values()) == mixed.num_parameters


# Parts.


def shapes(weights: tuple[Weight, ...]) -> dict[str, tuple[int, ...]]:
    return {weight.name: weight.shape for weight in weights if not weight.continues}


def test_attention_tensors():
    attention = Attention(
        8, 2, 64, qkv_bias=True, o_bias=True, qk_norm="all", qk_norm_bias=True, sinks=True, output_gate=True
    )
    assert shapes(attention.weights(256)) == {
        "self_attn.q_proj.weight": (1024, 256),
        "self_attn.q_proj.bias": (1024,),
        "self_attn.k_proj.weight": (128, 256),
        "self_attn.k_proj.bias": (128,),
        "self_attn.v_proj.weight": (128, 256),
        "self_attn.v_proj.bias": (128,),
        "self_attn.o_proj.weight": (256, 512),
        "self_attn.o_proj.bias": (256,),
        "self_attn.q_norm.weight": (512,),
        "self_attn.q_norm.bias": (512,),
        "self_attn.k_norm.weight": (128,),
        "self_attn.k_norm.bias": (128,),
        "self_attn.sinks": (8,),
    }


def test_fused_tensors_are_one_in_pieces():
    fused = Attention(8, 1, 64, names=("qkv", "qkv", "qkv", "dense"))
    pieces = [w for w in fused.weights(256) if w.name == "qkv.weight"]
    assert [(w.shape[0], w.units, w.continues) for w in pieces] == [
        (512, 8, False),
        (64, 1, True),
        (64, 1, True),
    ]


def test_latent_tensors():
    assert shapes(MLA.weights(7168)) == {
        "self_attn.q_a_proj.weight": (1536, 7168),
        "self_attn.q_a_layernorm.weight": (1536,),
        "self_attn.q_b_proj.weight": (128 * 192, 1536),
        "self_attn.kv_a_proj_with_mqa.weight": (576, 7168),
        "self_attn.kv_a_layernorm.weight": (512,),
        "self_attn.kv_b_proj.weight": (128 * 256, 512),
        "self_attn.o_proj.weight": (7168, 128 * 128),
    }
    direct = LatentAttention(128, 512, 128, 64, 128)
    assert shapes(direct.weights(7168))["self_attn.q_proj.weight"] == (128 * 192, 7168)


def test_flop_of_a_pair_of_tokens():
    assert GQA.pair_flop == 4 * 32 * 64
    assert MLA.pair_flop == 2 * 128 * (512 + 64 + 512)
    assert MLA.pair_flop_expanded == 2 * 128 * (128 + 64 + 128)


def test_states_are_constant_and_cut_by_heads():
    mamba, mamba2, delta, lightning = RECURRENT
    assert mamba.state_elements() == (512 * 3, 512 * 16)
    assert mamba2.state_elements() == ((512 + 2 * 2 * 128) * 3, 512 * 128)
    assert delta.state_elements() == ((2 * 128 + 512) * 3, 512 * 32)
    assert lightning.state_elements() == (0, 8 * 64 * 64)
    assert mamba2.state_elements(8) == ((64 + 2 * 128) * 3, 64 * 128)
    assert lightning.state_elements(3) == (0, 3 * 64 * 64)
    states = model(*RECURRENT, GQA)
    convs, recurrents = (sum(part.state_elements()[i] for part in RECURRENT) for i in (0, 1))
    assert states.state_bytes_per_sequence("fp16") == 2 * convs + 4 * recurrents
    assert states.state_bytes_per_sequence("fp16", "fp16") == 2 * (convs + recurrents)
    assert states.kv_bytes_per_token() == 2 * 8 * 64 * 2


def test_active_parameters_of_experts():
    experts = ExpertFeedForward(
        experts=16, active=2, intermediate=64, shared_intermediate=32, shared_gate=True, router_bias=True
    )
    one = 3 * 64 * 256
    weights = experts.weights(256)
    small = 16 * 256 + 16 + 3 * 32 * 256 + 256
    assert sum(w.parameters for w in weights) == 16 * one + small
    assert sum(w.parameters_active for w in weights) == 2 * one + small


def test_a_narrow_expert_width_is_projected():
    latent = ExpertFeedForward(
        experts=4, active=1, intermediate=64, latent=128, gated=False, names=("up", "down")
    )
    by_name = shapes(latent.weights(256))
    assert by_name["up.weight"] == (64, 128)
    assert by_name["mixer.fc1_latent_proj.weight"] == (128, 256)
    assert by_name["mixer.fc2_latent_proj.weight"] == (256, 128)


def test_networks_need_a_name_for_each_matrix():
    with pytest.raises(ValueError, match="gated"):
        DenseFeedForward(64, names=("up", "down")).weights(256)
