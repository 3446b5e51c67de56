"""The Llama line: Llama, Mistral, Qwen2 and Qwen3, written once.

The families differ in data only: Mistral has sliding windows, Qwen2 adds biases to Q, K and V, Qwen3
normalises each query and key head. All of it is in ``ModelSpec``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic

from rooftree.checkpoint.base import Tensor
from rooftree.checkpoint.formats import dequantize
from rooftree.kernels.ops import Floats, Ops, V, W
from rooftree.specs.model import ModelSpec


@dataclass(frozen=True, slots=True)
class LayerWeights(Generic[W]):
    """One decoder layer; absent biases and norms are None."""

    input_norm: Floats
    qkv: tuple[W, W, W]
    qkv_bias: tuple[Floats | None, Floats | None, Floats | None]
    q_norm: Floats | None
    k_norm: Floats | None
    o: W
    o_bias: Floats | None
    post_norm: Floats
    gate: W
    up: W
    gate_bias: Floats | None
    up_bias: Floats | None
    down: W
    down_bias: Floats | None


@dataclass(frozen=True, slots=True)
class DecoderWeights(Generic[W]):
    """All weights of a decoder. A tied head is the embedding itself."""

    embed: W
    layers: list[LayerWeights[W]]
    norm: Floats
    head: W


def load_weights(ops: Ops[V, W], spec: ModelSpec, tensors: Mapping[str, Tensor]) -> DecoderWeights[W]:
    """Hand every tensor to the backend, by the names of ``checkpoint.base.Checkpoint``."""

    def matrix(name: str) -> W:
        return ops.matrix(tensors[name])

    def vector(name: str) -> Floats | None:
        return dequantize(tensors[name]).reshape(-1) if name in tensors else None

    def norm(name: str) -> Floats:
        return dequantize(tensors[name]).reshape(-1)

    layers = []
    for i in range(spec.num_layers):
        attn, mlp = f"model.layers.{i}.self_attn", f"model.layers.{i}.mlp"
        layers.append(
            LayerWeights(
                input_norm=norm(f"model.layers.{i}.input_layernorm.weight"),
                qkv=(
                    matrix(f"{attn}.q_proj.weight"),
                    matrix(f"{attn}.k_proj.weight"),
                    matrix(f"{attn}.v_proj.weight"),
                ),
                qkv_bias=(
                    vector(f"{attn}.q_proj.bias"),
                    vector(f"{attn}.k_proj.bias"),
                    vector(f"{attn}.v_proj.bias"),
                ),
                q_norm=vector(f"{attn}.q_norm.weight"),
                k_norm=vector(f"{attn}.k_norm.weight"),
                o=matrix(f"{attn}.o_proj.weight"),
                o_bias=vector(f"{attn}.o_proj.bias"),
                post_norm=norm(f"model.layers.{i}.post_attention_layernorm.weight"),
                gate=matrix(f"{mlp}.gate_proj.weight"),
                up=matrix(f"{mlp}.up_proj.weight"),
                gate_bias=vector(f"{mlp}.gate_proj.bias"),
                up_bias=vector(f"{mlp}.up_proj.bias"),
                down=matrix(f"{mlp}.down_proj.weight"),
                down_bias=vector(f"{mlp}.down_proj.bias"),
            )
        )
    embed = matrix("model.embed_tokens.weight")
    head = embed if spec.tie_word_embeddings else matrix("lm_head.weight")
    return DecoderWeights(embed, layers, norm("model.norm.weight"), head)


def decoder(ops: Ops[V, W], spec: ModelSpec, weights: DecoderWeights[W]) -> V:
    """Token ids to logits of the sampled rows, (num_sampled, vocab_size)."""
    eps = spec.rms_norm_eps
    x = ops.embed(weights.embed)
    for i, layer in enumerate(weights.layers):
        h = ops.rms_norm(x, layer.input_norm, eps)
        qkv = ops.linear(h, layer.qkv, layer.qkv_bias)
        qkv = ops.rope_and_cache(qkv, i, layer.q_norm, layer.k_norm, eps)
        a = ops.attention(qkv, i, spec.windows[i])
        x = ops.linear_add(x, a, layer.o, layer.o_bias)
        h = ops.rms_norm(x, layer.post_norm, eps)
        h = ops.gated_mlp(h, layer.gate, layer.up, layer.gate_bias, layer.up_bias)
        x = ops.linear_add(x, h, layer.down, layer.down_bias)
    x = ops.select_sampled(x)
    x = ops.rms_norm(x, weights.norm, eps)
    return ops.linear(x, [weights.head], [None])
