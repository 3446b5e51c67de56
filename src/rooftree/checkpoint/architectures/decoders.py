"""Families of decoders that have attention in every layer, by model_type."""

from __future__ import annotations

from collections.abc import Callable

from rooftree.checkpoint.architectures.attention_parts import (
    FUSED,
    AttentionLayers,
    alternating,
    latent_attention,
    listed_windows,
    llama4_attention,
    one_window,
    qwen_windows,
)
from rooftree.checkpoint.architectures.family import Family, named_norms
from rooftree.checkpoint.architectures.feed_forward_parts import (
    FUSED_MLP,
    GRANITE_EXPERTS,
    GRANITE_SHARED,
    PLAIN_MLP,
    W123,
    DenseLayers,
    ExpertLayers,
    after_dense,
    always,
    every_step,
    llama4_sparse,
    no_aux_loss,
)
from rooftree.checkpoint.architectures.values import whole
from rooftree.checkpoint.fields import Fields
from rooftree.specs.feed_forward import GATED

_GEMMA_NORMS = named_norms(
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)
_STACKED = ("gate_up_proj", "gate_up_proj", "down_proj")
_SHARED_EXPERT = tuple(f"mlp.shared_expert.{name}" for name in GATED)


def extra_modules(field: str, what: str = "multi-token prediction") -> Callable[[Fields], tuple[str, ...]]:
    """A note where a config has modules that plain decoding does not use; they are not counted."""

    def notes(fields: Fields) -> tuple[str, ...]:
        count = whole(fields, field, 0)
        return (f"not counted: {count} {what} module(s) ({field})",) if count else ()

    return notes


def _latent(router_bias: Callable[[Fields], bool]) -> Family:
    return Family(
        mixers=latent_attention,
        feed_forwards=ExpertLayers(
            experts="n_routed_experts",
            width="moe_intermediate_size",
            shared_count="n_shared_experts",
            sparse=after_dense,
            router_bias=router_bias,
        ),
        notes=extra_modules("num_nextn_predict_layers"),
    )


_GRANITE_ATTENTION = AttentionLayers(qkv_bias="attention_bias", o_bias="attention_bias")

DENSE: dict[str, Family] = {
    "llama": Family(
        mixers=AttentionLayers(qkv_bias="attention_bias", o_bias="attention_bias"),
        feed_forwards=DenseLayers(bias="mlp_bias"),
    ),
    "mistral": Family(mixers=AttentionLayers(windows=one_window), feed_forwards=DenseLayers()),
    "ministral": Family(mixers=AttentionLayers(windows=listed_windows), feed_forwards=DenseLayers()),
    "ministral3": Family(
        mixers=AttentionLayers(windows=one_window, head_dim=128), feed_forwards=DenseLayers()
    ),
    "qwen2": Family(mixers=AttentionLayers(windows=qwen_windows, qkv_bias=True), feed_forwards=DenseLayers()),
    "qwen3": Family(
        mixers=AttentionLayers(
            windows=qwen_windows,
            head_dim=128,
            qkv_bias="attention_bias",
            o_bias="attention_bias",
            qk_norm="head",
        ),
        feed_forwards=DenseLayers(),
    ),
    "gemma": Family(
        mixers=AttentionLayers(head_dim=256, qkv_bias="attention_bias", o_bias="attention_bias"),
        feed_forwards=DenseLayers(),
        tied=True,
    ),
    "gemma2": Family(
        mixers=AttentionLayers(
            windows=alternating(2), head_dim=256, qkv_bias="attention_bias", o_bias="attention_bias"
        ),
        feed_forwards=DenseLayers(),
        norms=_GEMMA_NORMS,
        tied=True,
    ),
    "gemma3_text": Family(
        mixers=AttentionLayers(
            windows=alternating(6, "sliding_window_pattern"),
            head_dim=256,
            qkv_bias="attention_bias",
            o_bias="attention_bias",
            qk_norm="head",
        ),
        feed_forwards=DenseLayers(),
        norms=_GEMMA_NORMS,
        tied=True,
        defaults=(
            ("vocab_size", 262208),
            ("num_attention_heads", 8),
            ("num_key_value_heads", 4),
            ("max_position_embeddings", 131072),
        ),
    ),
    "phi3": Family(
        mixers=AttentionLayers(windows=one_window, names=FUSED),
        feed_forwards=DenseLayers(names=FUSED_MLP),
    ),
    "granite": Family(mixers=_GRANITE_ATTENTION, feed_forwards=DenseLayers(bias="mlp_bias")),
    "smollm3": Family(
        mixers=AttentionLayers(windows=listed_windows, qkv_bias="attention_bias", o_bias="attention_bias"),
        feed_forwards=DenseLayers(bias="mlp_bias"),
        tied=True,
    ),
    "nemotron": Family(
        mixers=AttentionLayers(qkv_bias="attention_bias", o_bias="attention_bias"),
        feed_forwards=DenseLayers(names=PLAIN_MLP, bias="mlp_bias"),
        norms=named_norms("input_layernorm", "post_attention_layernorm", bias=True),
        norm_bias=True,
    ),
    "glm4": Family(
        mixers=AttentionLayers(head_dim=128, qkv_bias="attention_bias"),
        feed_forwards=DenseLayers(names=FUSED_MLP),
        norms=named_norms(
            "input_layernorm",
            "post_self_attn_layernorm",
            "post_attention_layernorm",
            "post_mlp_layernorm",
        ),
    ),
}

EXPERTS: dict[str, Family] = {
    "mixtral": Family(
        mixers=AttentionLayers(windows=one_window),
        feed_forwards=ExpertLayers(names=W123, router="block_sparse_moe.gate"),
    ),
    "phimoe": Family(
        mixers=AttentionLayers(windows=one_window, qkv_bias="attention_bias", o_bias="attention_bias"),
        feed_forwards=ExpertLayers(names=W123, router="block_sparse_moe.gate"),
        norms=named_norms("input_layernorm", "post_attention_layernorm", bias=True),
        norm_bias=True,
        head_bias=lambda fields: fields.flag("lm_head_bias", False),
    ),
    "llama4_text": Family(
        mixers=llama4_attention,
        feed_forwards=ExpertLayers(
            # One shared expert, as wide as a routed one.
            shared="intermediate_size",
            dense_width="intermediate_size_mlp",
            dense_names=tuple(f"feed_forward.{name}" for name in GATED),
            sparse=llama4_sparse,
            names=tuple(f"feed_forward.experts.{name}" for name in _STACKED),
            shared_names=tuple(f"feed_forward.shared_expert.{name}" for name in GATED),
            router="feed_forward.router",
        ),
    ),
    "qwen2_moe": Family(
        mixers=AttentionLayers(windows=qwen_windows, qkv_bias=True),
        feed_forwards=ExpertLayers(
            experts="num_experts",
            width="moe_intermediate_size",
            shared="shared_expert_intermediate_size",
            shared_gate=True,
            shared_names=_SHARED_EXPERT,
            sparse=every_step,
        ),
    ),
    "qwen3_moe": Family(
        mixers=AttentionLayers(
            windows=qwen_windows, qkv_bias="attention_bias", o_bias="attention_bias", qk_norm="head"
        ),
        feed_forwards=ExpertLayers(experts="num_experts", width="moe_intermediate_size", sparse=every_step),
    ),
    "deepseek_v2": _latent(lambda fields: False),
    "deepseek_v3": _latent(no_aux_loss),
    "kimi_k2": _latent(no_aux_loss),
    "gpt_oss": Family(
        mixers=AttentionLayers(windows=alternating(2), head_dim=64, qkv_bias=True, o_bias=True, sinks=True),
        feed_forwards=ExpertLayers(
            bias=True,
            router_bias=always,
            names=tuple(f"mlp.experts.{name}" for name in _STACKED),
            router="mlp.router",
            router_bias_name="mlp.router.bias",
        ),
    ),
    "glm4_moe": Family(
        mixers=AttentionLayers(qkv_bias="attention_bias", qk_norm="head", qk_norm_if="use_qk_norm"),
        feed_forwards=ExpertLayers(
            experts="n_routed_experts",
            width="moe_intermediate_size",
            shared_count="n_shared_experts",
            sparse=after_dense,
            router_bias=always,
        ),
        notes=extra_modules("num_nextn_predict_layers"),
    ),
    "granitemoe": Family(
        mixers=_GRANITE_ATTENTION,
        feed_forwards=ExpertLayers(names=GRANITE_EXPERTS, router="block_sparse_moe.router.layer"),
    ),
    "granitemoeshared": Family(
        mixers=_GRANITE_ATTENTION,
        feed_forwards=ExpertLayers(
            shared="shared_intermediate_size",
            names=GRANITE_EXPERTS,
            shared_names=GRANITE_SHARED,
            router="block_sparse_moe.router.layer",
        ),
    ),
    "minimax_m2": Family(
        mixers=AttentionLayers(head_dim=128, qk_norm="all"),
        feed_forwards=ExpertLayers(
            names=W123,
            router="block_sparse_moe.gate",
            router_bias=always,
            router_bias_name="block_sparse_moe.e_score_correction_bias",
        ),
        notes=extra_modules("num_mtp_modules"),
    ),
}

DECODERS = DENSE | EXPERTS
