"""Layers that keep something of every token: multi-head attention in its kinds, and latent attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rooftree.specs.weight import Weight


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention over cached K and V: MHA, GQA (fewer KV heads) or MQA (one KV head).

    Attributes:
        num_heads, num_kv_heads, head_dim: as published; head_dim is never derived here.
        window: tokens that a query can see, itself included; None: all.
        window_kind: ``sliding`` (the last ``window`` tokens) or ``chunked`` (those of its own chunk of
            ``window`` tokens).
        q_bias, kv_bias, o_bias: which projections have biases.
        qk_norm: ``head`` (one norm weight of head_dim each for Q and K), ``all`` (one over all heads of each)
            or None.
        qk_norm_bias: those norms have biases.
        sinks: one learned logit per head (gpt-oss).
        output_gate: the query projection is doubled, its second half gates the output (Qwen3-Next).
        fused: name of the one projection that holds Q, K and V, where the checkpoint has one.
        name, output: module names in the checkpoint.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None
    window_kind: Literal["sliding", "chunked"] = "sliding"
    q_bias: bool = False
    kv_bias: bool = False
    o_bias: bool = False
    qk_norm: Literal["head", "all"] | None = None
    qk_norm_bias: bool = False
    sinks: bool = False
    output_gate: bool = False
    fused: str | None = None
    name: str = "self_attn"
    output: str = "o_proj"

    @property
    def kv_elements_per_token(self) -> int:
        """Elements of K and V that one token leaves in this layer."""
        return 2 * self.num_kv_heads * self.head_dim

    def kv_elements_per_device(self, tensor_parallel: int) -> int:
        """The same on the device that holds most under tensor parallelism: never below one KV head."""
        return 2 * -(-self.num_kv_heads // tensor_parallel) * self.head_dim

    @property
    def pair_flop(self) -> int:
        """FLOP of one query token meeting one cached token, all heads: 2 for Q·K and 2 for P·V per element."""
        return 4 * self.num_heads * self.head_dim

    def weights(self, hidden: int) -> tuple[Weight, ...]:
        """Its tensors in a model of that width."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2): what is cached is one latent and one rotary key per token.

    ``q_lora_rank`` None: queries are projected directly. The cache is the same on every device of a tensor
    parallel group, since all heads read it.
    """

    num_heads: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None
    bias: bool = False
    name: str = "self_attn"
    window: None = None

    @property
    def kv_elements_per_token(self) -> int:
        """Elements of the latent and the rotary key that one token leaves in this layer."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    def kv_elements_per_device(self, tensor_parallel: int) -> int:
        """The same: replicated on every device."""
        return self.kv_elements_per_token

    @property
    def pair_flop(self) -> int:
        """FLOP of one query token meeting one cached token, all heads, in the absorbed form (decode)."""
        return 2 * self.num_heads * (2 * self.kv_lora_rank + self.qk_rope_head_dim)

    @property
    def pair_flop_expanded(self) -> int:
        """The same with K and V expanded to heads (prefill)."""
        return 2 * self.num_heads * (self.qk_nope_head_dim + self.qk_rope_head_dim + self.v_head_dim)

    def weights(self, hidden: int) -> tuple[Weight, ...]:
        """Its tensors in a model of that width."""
        raise NotImplementedError
