"""Attention as the families' configs describe it: heads, biases, norms, windows by layer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from rooftree.checkpoint.architectures.family import MixerOf
from rooftree.checkpoint.architectures.values import (
    CHUNKED,
    FULL,
    SLIDING,
    heads,
    optional_count,
    per_layer,
    whole,
)
from rooftree.checkpoint.fields import Fields
from rooftree.specs.attention import Attention, LatentAttention

Windows = Callable[[Fields], Callable[[int], int | None]]
# A feature that a family always has or never has, or the name of the flag that says so (absent: no).
Feature = bool | str

SEPARATE = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
FUSED = (*("self_attn.qkv_proj",) * 3, "self_attn.o_proj")


def has(fields: Fields, feature: Feature) -> bool:
    """Whether a model has a feature of its family."""
    return feature if isinstance(feature, bool) else fields.flag(feature, False)


def no_window(fields: Fields) -> Callable[[int], int | None]:
    """Every layer sees everything."""
    return lambda index: None


def one_window(fields: Fields) -> Callable[[int], int | None]:
    """The same window in every layer, where the field is not null (Mistral, Phi-3)."""
    window = optional_count(fields, "sliding_window")
    return lambda index: window


def qwen_windows(fields: Fields) -> Callable[[int], int | None]:
    """Only where use_sliding_window is set: by layer_types, or from layer max_window_layers on."""
    if not fields.flag("use_sliding_window", False):
        return lambda index: None
    window, first = fields.count("sliding_window"), whole(fields, "max_window_layers", 28)
    kinds = per_layer(fields, "layer_types", (FULL, SLIDING), lambda i: SLIDING if i >= first else FULL)
    return lambda index: window if kinds[index] == SLIDING else None


def alternating(every: int, pattern_field: str | None = None) -> Windows:
    """A window except in each ``every``-th layer, unless layer_types says otherwise (Gemma, gpt-oss)."""

    def windows(fields: Fields) -> Callable[[int], int | None]:
        window = fields.count("sliding_window")
        period = fields.count(pattern_field, every) if pattern_field else every
        kinds = per_layer(
            fields, "layer_types", (FULL, SLIDING), lambda i: SLIDING if (i + 1) % period else FULL
        )
        return lambda index: window if kinds[index] == SLIDING else None

    return windows


def listed_windows(fields: Fields) -> Callable[[int], int | None]:
    """By layer_types alone; left out: no window (SmolLM3 and unknown families)."""
    kinds = per_layer(fields, "layer_types", (FULL, SLIDING), lambda i: FULL)
    window = fields.count("sliding_window") if SLIDING in kinds else None
    return lambda index: window if kinds[index] == SLIDING else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLayers:
    """Attention in every layer of a model, differing at most in its window."""

    windows: Windows = no_window
    head_dim: int | None = None
    qkv_bias: Feature = False
    o_bias: Feature = False
    qk_norm: Literal["head", "all"] | None = None
    qk_norm_if: str | None = None
    sinks: bool = False
    output_gate: bool = False
    names: tuple[str, str, str, str] = SEPARATE
    norm_names: tuple[str, str] = ("self_attn.q_norm", "self_attn.k_norm")

    def __call__(self, fields: Fields) -> MixerOf:
        """The attention of each layer."""
        window = self.windows(fields)
        normed = self.qk_norm_if is None or fields.flag(self.qk_norm_if, False)
        attention = Attention(
            *heads(fields, self.head_dim),
            qkv_bias=has(fields, self.qkv_bias),
            o_bias=has(fields, self.o_bias),
            qk_norm=self.qk_norm if normed else None,
            sinks=self.sinks,
            output_gate=self.output_gate,
            names=self.names,
            norm_names=self.norm_names,
        )
        return lambda index: replace(attention, window=window(index))


def latent_attention(fields: Fields) -> MixerOf:
    """Multi-head latent attention (DeepSeek-V2 and V3, Kimi-K2)."""
    attention = LatentAttention(
        num_heads=fields.count("num_attention_heads"),
        kv_lora_rank=fields.count("kv_lora_rank"),
        qk_nope_head_dim=fields.count("qk_nope_head_dim"),
        qk_rope_head_dim=fields.count("qk_rope_head_dim"),
        v_head_dim=fields.count("v_head_dim"),
        q_lora_rank=optional_count(fields, "q_lora_rank"),
        bias=fields.flag("attention_bias", False),
    )
    return lambda index: attention


def llama4_attention(fields: Fields) -> MixerOf:
    """Chunks in the layers with rotary embeddings, everything in those without (each fourth one)."""
    rotary = fields.get("no_rope_layers") or None
    step = fields.count("no_rope_layer_interval", 4)
    flags = (
        per_layer(fields, "no_rope_layers", (0, 1))
        if rotary
        else [(i + 1) % step != 0 for i in _range(fields)]
    )
    chunk = optional_count(fields, "attention_chunk_size")
    kinds = per_layer(
        fields, "layer_types", (FULL, CHUNKED), lambda i: CHUNKED if flags[i] and chunk is not None else FULL
    )
    if chunk is None and CHUNKED in kinds:
        fields.fail("attention_chunk_size", "is missing, and layer_types has chunked attention")
    bias = fields.flag("attention_bias", False)
    full = Attention(*heads(fields, 128), qkv_bias=bias, o_bias=bias)
    chunked = replace(full, window=chunk, window_kind="chunked")
    return lambda index: chunked if kinds[index] == CHUNKED else full


def _range(fields: Fields) -> range:
    return range(fields.layers("num_hidden_layers"))
