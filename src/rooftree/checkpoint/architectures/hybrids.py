"""Families with recurrent layers: Mamba, Jamba, Nemotron-H, Bamba, Granite 4, Qwen3-Next, MiniMax-Text-01."""

from __future__ import annotations

from collections.abc import Callable

from rooftree.checkpoint.architectures.attention_parts import AttentionLayers
from rooftree.checkpoint.architectures.decoders import extra_modules
from rooftree.checkpoint.architectures.family import Family, FeedForwardOf, MixerOf, named_norms
from rooftree.checkpoint.architectures.feed_forward_parts import (
    GRANITE_EXPERTS,
    GRANITE_SHARED,
    W123,
    DenseLayers,
    ExpertLayers,
    every_step,
)
from rooftree.checkpoint.architectures.values import (
    FULL,
    heads,
    layer_indices,
    optional_count,
    per_layer,
    whole,
)
from rooftree.checkpoint.fields import Fields
from rooftree.specs.architecture import Mixer
from rooftree.specs.attention import Attention
from rooftree.specs.feed_forward import GATED, DenseFeedForward, ExpertFeedForward
from rooftree.specs.recurrent import GatedDeltaNet, LightningAttention, Mamba, Mamba2

LINEAR = "linear_attention"


def _mamba(fields: Fields) -> MixerOf:
    hidden = fields.count("hidden_size")
    inner = fields.count("intermediate_size", fields.count("expand", 2) * hidden)
    mixer = Mamba(
        inner=inner,
        state=fields.count("state_size"),
        conv_kernel=fields.count("conv_kernel"),
        dt_rank=_dt_rank(fields, "time_step_rank"),
        conv_bias=fields.flag("use_conv_bias", True),
        proj_bias=fields.flag("use_bias", False),
    )
    return lambda index: mixer


def _dt_rank(fields: Fields, name: str) -> int:
    """A number, or ``auto``: a sixteenth of the width, rounded up."""
    if fields.get(name) == "auto":
        return -(-fields.count("hidden_size") // 16)
    return fields.count(name)


def _mamba2(fields: Fields) -> MixerOf:
    num_heads, head_dim = fields.count("num_heads"), fields.count("head_dim")
    inner = fields.count("expand", 2) * fields.count("hidden_size")
    if num_heads * head_dim != inner:
        fields.fail("num_heads", f"times head_dim is {num_heads * head_dim}; expand x hidden_size is {inner}")
    mixer = Mamba2(
        num_heads=num_heads,
        head_dim=head_dim,
        state=fields.count("state_size"),
        groups=fields.count("n_groups"),
        conv_kernel=fields.count("conv_kernel"),
        conv_bias=fields.flag("use_conv_bias", True),
        proj_bias=fields.flag("use_bias", False),
    )
    return lambda index: mixer


def _no_feed_forward(fields: Fields) -> FeedForwardOf:
    return lambda index: None


def _mamba_family(mixers: Callable[[Fields], MixerOf], *, tied: bool) -> Family:
    return Family(
        mixers=mixers,
        feed_forwards=_no_feed_forward,
        norms=named_norms("norm"),
        tied=tied,
        layer_prefix="backbone.layers.",
        embed_name="backbone.embeddings",
        norm_name="backbone.norm_f",
        positions=None,
        aliases=(("num_hidden_layers", "n_layer"), ("hidden_size", "d_model")),
    )


def _jamba_mixers(fields: Fields) -> MixerOf:
    """Attention where the layer's number modulo attn_layer_period is attn_layer_offset."""
    period, offset = fields.count("attn_layer_period"), whole(fields, "attn_layer_offset")
    attention = Attention(*heads(fields))
    mamba = Mamba(
        inner=fields.count("mamba_expand") * fields.count("hidden_size"),
        state=fields.count("mamba_d_state"),
        conv_kernel=fields.count("mamba_d_conv"),
        dt_rank=_dt_rank(fields, "mamba_dt_rank"),
        conv_bias=fields.flag("mamba_conv_bias", True),
        proj_bias=fields.flag("mamba_proj_bias", False),
        inner_norms=True,
        name="mamba",
    )
    return lambda index: attention if index % period == offset else mamba


def _jamba_sparse(fields: Fields) -> Callable[[int], bool]:
    period, offset = fields.count("expert_layer_period"), whole(fields, "expert_layer_offset")
    return lambda index: index % period == offset


_JAMBA_DENSE = tuple(f"feed_forward.{name}" for name in GATED)
_JAMBA_EXPERTS = ExpertLayers(
    experts="num_experts",
    dense_names=_JAMBA_DENSE,
    sparse=_jamba_sparse,
    names=tuple(f"feed_forward.experts.{{}}.{name}" for name in GATED),
    router="feed_forward.router",
)


def _jamba_feed_forwards(fields: Fields) -> FeedForwardOf:
    """A single expert is a dense network without a router."""
    if fields.count("num_experts") == 1:
        return DenseLayers(names=_JAMBA_DENSE)(fields)
    return _JAMBA_EXPERTS(fields)


_NEMOTRON_KINDS = {"M": LINEAR, "mamba": LINEAR, LINEAR: LINEAR, "*": FULL, "attention": FULL, FULL: FULL}
_NEMOTRON_LAYERS = ("hybrid_override_pattern", "layers_block_type")
_NEMOTRON_KINDS |= {"-": "mlp", "mlp": "mlp", "E": "moe", "moe": "moe"}


def _nemotron_kinds(fields: Fields) -> list[str]:
    """One character per layer in hybrid_override_pattern, or a list of words in layers_block_type."""
    name = next((name for name in _NEMOTRON_LAYERS if fields.get(name)), _NEMOTRON_LAYERS[-1])
    listed = fields.get(name)
    if not isinstance(listed, str | list) or not listed:
        fields.fail(name, f"must be a string or list with an entry for each layer, not {listed!r}")
    unknown = [kind for kind in listed if not isinstance(kind, str) or kind not in _NEMOTRON_KINDS]
    if unknown:
        fields.fail(name, f"has {unknown[0]!r}; known are {', '.join(_NEMOTRON_KINDS)}")
    num_layers = fields.layers("num_hidden_layers")
    if len(listed) != num_layers:
        fields.fail(name, f"has {len(listed)} entries for {num_layers} layers")
    return [_NEMOTRON_KINDS[kind] for kind in listed]


def _nemotron_mixers(fields: Fields) -> MixerOf:
    kinds = _nemotron_kinds(fields)
    names = tuple(f"mixer.{letter}_proj" for letter in "qkvo")
    attention = Attention(*heads(fields, 128), names=(names[0], names[1], names[2], names[3]))
    mamba = Mamba2(
        num_heads=fields.count("mamba_num_heads"),
        head_dim=fields.count("mamba_head_dim"),
        state=fields.count("ssm_state_size"),
        groups=fields.count("n_groups"),
        conv_kernel=fields.count("conv_kernel"),
        conv_bias=fields.flag("use_conv_bias", True),
        proj_bias=fields.flag("use_bias", False),
    )
    mixers: dict[str, Mixer] = {LINEAR: mamba, FULL: attention}
    return lambda index: mixers.get(kinds[index])


def _nemotron_feed_forwards(fields: Fields) -> FeedForwardOf:
    kinds, bias = _nemotron_kinds(fields), fields.flag("mlp_bias", False)
    parts: dict[str, DenseFeedForward | ExpertFeedForward] = {}
    if "mlp" in kinds:
        names = ("mixer.up_proj", "mixer.down_proj")
        parts["mlp"] = DenseFeedForward(
            fields.count("intermediate_size"), gated=False, bias=bias, names=names
        )
    if "moe" in kinds:
        shared = whole(fields, "n_shared_experts", 1)
        parts["moe"] = ExpertFeedForward(
            experts=fields.count("n_routed_experts"),
            active=fields.count("num_experts_per_tok"),
            intermediate=fields.count("moe_intermediate_size"),
            shared_intermediate=fields.count("moe_shared_expert_intermediate_size") if shared else 0,
            gated=False,
            router_bias=True,
            latent=optional_count(fields, "moe_latent_size") or 0,
            names=("mixer.experts.{}.up_proj", "mixer.experts.{}.down_proj"),
            shared_names=("mixer.shared_experts.up_proj", "mixer.shared_experts.down_proj"),
            router="mixer.gate",
            router_bias_name="mixer.gate.e_score_correction_bias",
        )
    return lambda index: parts.get(kinds[index])


def _named_mamba2(fields: Fields) -> Mamba2:
    """Mamba-2 layers under the key names of Bamba and Granite 4."""
    inner = fields.count("mamba_expand") * fields.count("hidden_size")
    num_heads = fields.count("mamba_n_heads")
    auto = fields.get("mamba_d_head") in (None, "auto")
    head_dim = inner // num_heads if auto else fields.count("mamba_d_head")
    if num_heads * head_dim != inner:
        fields.fail("mamba_n_heads", f"times mamba_d_head must be mamba_expand x hidden_size, {inner}")
    return Mamba2(
        num_heads=num_heads,
        head_dim=head_dim,
        state=fields.count("mamba_d_state"),
        groups=fields.count("mamba_n_groups"),
        conv_kernel=fields.count("mamba_d_conv"),
        conv_bias=fields.flag("mamba_conv_bias", True),
        proj_bias=fields.flag("mamba_proj_bias", False),
        name="mamba",
    )


def _bamba_mixers(fields: Fields) -> MixerOf:
    attention_layers, mamba = layer_indices(fields, "attn_layer_indices"), _named_mamba2(fields)
    bias = fields.flag("attention_bias", False)
    attention = Attention(*heads(fields), qkv_bias=bias, o_bias=bias)
    return lambda index: attention if index in attention_layers else mamba


def _granite_mixers(fields: Fields) -> MixerOf:
    bias = fields.flag("attention_bias", False)
    attention = Attention(*heads(fields), qkv_bias=bias, o_bias=bias)
    kinds = per_layer(fields, "layer_types", ("mamba", "attention", LINEAR, FULL))
    if not {"mamba", LINEAR} & set(kinds):
        return lambda index: attention
    mamba = _named_mamba2(fields)
    return lambda index: mamba if kinds[index] in ("mamba", LINEAR) else attention


def _granite_feed_forwards(fields: Fields) -> FeedForwardOf:
    """Without routed experts, the shared ones are a dense network."""
    if whole(fields, "num_local_experts") == 0:
        return DenseLayers(names=GRANITE_SHARED, width="shared_intermediate_size")(fields)
    return ExpertLayers(
        shared="shared_intermediate_size",
        names=GRANITE_EXPERTS,
        shared_names=GRANITE_SHARED,
        router="block_sparse_moe.router.layer",
    )(fields)


_GATED_ATTENTION = AttentionLayers(
    head_dim=256, qkv_bias="attention_bias", o_bias="attention_bias", qk_norm="head", output_gate=True
)


def _delta_mixers(fields: Fields) -> MixerOf:
    """Attention in each full_attention_interval-th layer, unless layer_types says otherwise."""
    step = fields.count("full_attention_interval", 4)
    kinds = per_layer(fields, "layer_types", (FULL, LINEAR), lambda i: LINEAR if (i + 1) % step else FULL)
    attention = _GATED_ATTENTION(fields)
    delta = GatedDeltaNet(
        num_key_heads=fields.count("linear_num_key_heads"),
        num_value_heads=fields.count("linear_num_value_heads"),
        key_head_dim=fields.count("linear_key_head_dim"),
        value_head_dim=fields.count("linear_value_head_dim"),
        conv_kernel=fields.count("linear_conv_kernel_dim"),
    )
    return lambda index: attention(index) if kinds[index] == FULL else delta


_DELTA_EXPERTS = ExpertLayers(
    experts="num_experts",
    width="moe_intermediate_size",
    shared="shared_expert_intermediate_size",
    shared_gate=True,
    shared_names=tuple(f"mlp.shared_expert.{name}" for name in GATED),
    sparse=every_step,
)


def _minimax_mixers(fields: Fields) -> MixerOf:
    """attn_type_list (0: lightning, 1: softmax) as published, or layer_types as converted."""
    if fields.get("attn_type_list") is not None:
        kinds = per_layer(fields, "attn_type_list", (0, 1))
    else:
        kinds = per_layer(fields, "layer_types", (FULL, LINEAR))
    shape = heads(fields)
    attention = Attention(*shape)
    lightning = LightningAttention(shape.num_heads, shape.head_dim)
    return lambda index: attention if kinds[index] in (1, FULL) else lightning


_MINIMAX = Family(
    mixers=_minimax_mixers,
    feed_forwards=ExpertLayers(
        names=W123,
        router="block_sparse_moe.gate",
        shared="shared_intermediate_size",
        shared_optional=True,
        shared_names=tuple(f"shared_mlp.{name}" for name in GATED),
    ),
)

HYBRIDS: dict[str, Family] = {
    "mamba": _mamba_family(_mamba, tied=True),
    "falcon_mamba": _mamba_family(_mamba, tied=True),
    "mamba2": _mamba_family(_mamba2, tied=False),
    "jamba": Family(
        mixers=_jamba_mixers,
        feed_forwards=_jamba_feed_forwards,
        norms=named_norms("input_layernorm", "pre_ff_layernorm"),
        norm_name="model.final_layernorm",
    ),
    "nemotron_h": Family(
        mixers=_nemotron_mixers,
        feed_forwards=_nemotron_feed_forwards,
        norms=named_norms("norm"),
        layer_prefix="backbone.layers.",
        embed_name="backbone.embeddings",
        norm_name="backbone.norm_f",
        aliases=(("n_groups", "mamba_n_groups"), ("conv_kernel", "mamba_d_conv")),
        layers_from=_NEMOTRON_LAYERS,
        notes=extra_modules("num_nextn_predict_layers"),
    ),
    "bamba": Family(
        mixers=_bamba_mixers,
        feed_forwards=DenseLayers(names=_JAMBA_DENSE, bias="mlp_bias"),
        norms=named_norms("input_layernorm", "pre_ff_layernorm"),
        norm_name="model.final_layernorm",
    ),
    "granitemoehybrid": Family(mixers=_granite_mixers, feed_forwards=_granite_feed_forwards),
    "qwen3_next": Family(mixers=_delta_mixers, feed_forwards=_DELTA_EXPERTS),
    "qwen3_5_text": Family(mixers=_delta_mixers, feed_forwards=DenseLayers()),
    "qwen3_5_moe_text": Family(mixers=_delta_mixers, feed_forwards=_DELTA_EXPERTS),
    "minimax": _MINIMAX,
}
