"""The Architecture of a model that the engine runs."""

from __future__ import annotations

from functools import cache

from rooftree.specs.architecture import Architecture, LayerSpec
from rooftree.specs.attention import Attention
from rooftree.specs.feed_forward import DenseFeedForward
from rooftree.specs.model import ModelSpec
from rooftree.specs.outside import outside_weights
from rooftree.specs.weight import norm
from rooftree.specs.weight_scheme import WeightScheme, uniform


def architecture_of(
    spec: ModelSpec, *, dtype: str = "bf16", scheme: WeightScheme | None = None
) -> Architecture:
    """The same model for the planner's eyes.

    Args:
        spec: a model of the Llama line.
        dtype: element type of unquantised tensors.
        scheme: how the weights are stored; None: all in ``dtype``.
    """

    @cache
    def layer(window: int | None) -> LayerSpec:
        return LayerSpec(
            mixer=Attention(
                num_heads=spec.num_heads,
                num_kv_heads=spec.num_kv_heads,
                head_dim=spec.head_dim,
                window=window,
                qkv_bias=spec.qkv_bias,
                o_bias=spec.o_bias,
                qk_norm="head" if spec.qk_norm else None,
            ),
            feed_forward=DenseFeedForward(spec.intermediate_size, bias=spec.mlp_bias),
            norms=(
                *norm("input_layernorm", spec.hidden_size),
                *norm("post_attention_layernorm", spec.hidden_size),
            ),
        )

    return Architecture(
        name=spec.family,
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        tied_head=spec.tie_word_embeddings,
        layers=tuple(layer(window) for window in spec.windows),
        outside=outside_weights(spec.vocab_size, spec.hidden_size, tied=spec.tie_word_embeddings),
        max_positions=spec.max_position_embeddings,
        dtype=dtype,
        scheme=scheme or uniform(dtype),
    )
