"""Layers that keep something of every token: multi-head attention in its kinds, and latent attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rooftree.specs.weight import Weight, linear, norm, share


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention over cached K and V: MHA, GQA (fewer KV heads) or MQA (one KV head).

    Attributes:
        num_heads, num_kv_heads, head_dim: as published; head_dim is never derived here.
        window: tokens that a query can see, itself included; None: all.
        window_kind: ``sliding`` (the last ``window`` tokens) or ``chunked`` (those of its own chunk of
            ``window`` tokens).
        qkv_bias, o_bias: which projections have biases.
        qk_norm: ``head`` (a norm weight of head_dim for Q and one for K), ``all`` (over all heads of each) or
            None.
        qk_norm_bias: those norms have biases.
        sinks: one learned logit per head (gpt-oss).
        output_gate: the query projection is doubled, its second half gates the output (Qwen3-Next).
        names: modules of Q, K, V and the output; equal names are one fused module.
        norm_names: modules of the Q and K norms.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None
    window_kind: Literal["sliding", "chunked"] = "sliding"
    qkv_bias: bool = False
    o_bias: bool = False
    qk_norm: Literal["head", "all"] | None = None
    qk_norm_bias: bool = False
    sinks: bool = False
    output_gate: bool = False
    names: tuple[str, str, str, str] = (
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
    )
    norm_names: tuple[str, str] = ("self_attn.q_norm", "self_attn.k_norm")

    @property
    def kv_elements_per_token(self) -> int:
        """Elements of K and V that one token leaves in this layer."""
        return 2 * self.num_kv_heads * self.head_dim

    def kv_elements_per_device(self, tensor_parallel: int) -> int:
        """The same on the device that holds most under tensor parallelism: never below one KV head."""
        return self.kv_vectors_per_device(tensor_parallel) * self.head_dim

    def kv_vectors_per_device(self, tensor_parallel: int) -> int:
        """Heads of K and of V that one token leaves there."""
        return 2 * share(self.num_kv_heads, tensor_parallel)

    def kv_tokens(self, tokens: int, *, windowed: bool) -> int:
        """Tokens kept of a sequence: all, or at most the window where the engine frees what has left it."""
        return min(tokens, self.window) if windowed and self.window is not None else tokens

    @property
    def pair_flop(self) -> int:
        """FLOP of a query token meeting a cached token, all heads: 2 for Q·K and 2 for P·V per element."""
        return 4 * self.num_heads * self.head_dim

    def weights(self, hidden: int) -> tuple[Weight, ...]:
        """Its tensors in a model of that width."""
        return tuple(self._weights(hidden))

    def _weights(self, hidden: int) -> Iterator[Weight]:
        query, key, value, output = self.names
        q_size, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        heads, kv_heads, bias = self.num_heads, self.num_kv_heads, self.qkv_bias
        q_rows = 2 * q_size if self.output_gate else q_size
        yield from linear(query, q_rows, hidden, "attention", units=heads, bias=bias)
        for name, before in ((key, query), (value, key)):
            yield from linear(
                name, kv_size, hidden, "attention", units=kv_heads, bias=bias, continues=name == before
            )
        yield from linear(
            output, hidden, q_size, "attention", units=heads, bias=self.o_bias, split_input=True
        )
        if self.qk_norm is not None:
            sizes = (q_size, kv_size) if self.qk_norm == "all" else (self.head_dim, self.head_dim)
            for name, size in zip(self.norm_names, sizes, strict=True):
                yield from norm(name, size, bias=self.qk_norm_bias)
        if self.sinks:
            yield Weight("self_attn.sinks", (heads,), "attention", kind="other", units=heads)


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2): what is cached is one latent and one rotary key per token.

    ``q_lora_rank`` None: queries are projected directly. The cache is the same on every device of a tensor
    parallel group, since all heads read it. ``bias``: the projections into the latents and the output have
    biases.
    """

    num_heads: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None
    bias: bool = False

    @property
    def window(self) -> None:
        """There is none."""
        return None

    @property
    def kv_elements_per_token(self) -> int:
        """Elements of the latent and the rotary key that one token leaves in this layer."""
        return self.kv_lora_rank + self.qk_rope_head_dim

    def kv_elements_per_device(self, tensor_parallel: int) -> int:
        """The same: replicated on every device."""
        return self.kv_elements_per_token

    def kv_vectors_per_device(self, tensor_parallel: int) -> int:
        """The latent and the rotary key."""
        return 2

    def kv_tokens(self, tokens: int, *, windowed: bool) -> int:
        """Tokens kept of a sequence: all."""
        return tokens

    @property
    def pair_flop(self) -> int:
        """FLOP of a query token meeting a cached token, all heads, in the absorbed form (decode)."""
        return 2 * self.num_heads * (2 * self.kv_lora_rank + self.qk_rope_head_dim)

    @property
    def pair_flop_expanded(self) -> int:
        """The same with K and V expanded to heads (prefill)."""
        return 2 * self.num_heads * (self.qk_nope_head_dim + self.qk_rope_head_dim + self.v_head_dim)

    def weights(self, hidden: int) -> tuple[Weight, ...]:
        """Its tensors in a model of that width."""
        return tuple(self._weights(hidden))

    def _weights(self, hidden: int) -> Iterator[Weight]:
        heads, at = self.num_heads, "self_attn."
        q_size = heads * (self.qk_nope_head_dim + self.qk_rope_head_dim)
        if self.q_lora_rank is None:
            yield from linear(f"{at}q_proj", q_size, hidden, "attention", units=heads)
        else:
            yield from linear(f"{at}q_a_proj", self.q_lora_rank, hidden, "attention", bias=self.bias)
            yield from norm(f"{at}q_a_layernorm", self.q_lora_rank)
            yield from linear(f"{at}q_b_proj", q_size, self.q_lora_rank, "attention", units=heads)
        latent = self.kv_lora_rank + self.qk_rope_head_dim
        yield from linear(f"{at}kv_a_proj_with_mqa", latent, hidden, "attention", bias=self.bias)
        yield from norm(f"{at}kv_a_layernorm", self.kv_lora_rank)
        kv_size = heads * (self.qk_nope_head_dim + self.v_head_dim)
        yield from linear(f"{at}kv_b_proj", kv_size, self.kv_lora_rank, "attention", units=heads)
        yield from linear(
            f"{at}o_proj",
            hidden,
            heads * self.v_head_dim,
            "attention",
            units=heads,
            bias=self.bias,
            split_input=True,
        )
