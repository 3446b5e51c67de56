"""Layers that keep a state of constant size per sequence: state-space and linear-attention layers.

Each has the same three facts: ``state_elements`` (kept per sequence: the convolution's window and the
recurrent state, on the device that holds most), ``token_flop`` (FLOP of recurrence and convolution for
one token; the projections are ``linear`` weights and not included) and ``weights``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from rooftree.specs.weight import Weight, linear, norm, share


class StateElements(NamedTuple):
    """Elements kept per sequence. They may differ in dtype, hence apart."""

    conv: int
    recurrent: int


@dataclass(frozen=True, slots=True)
class Mamba:
    """Selective state-space layer (Gu and Dao, 2023), as in Mamba and Jamba.

    ``inner`` channels with ``state`` numbers each; ``inner_norms``: norms on dt, B and C (Jamba).
    """

    inner: int
    state: int
    conv_kernel: int
    dt_rank: int
    conv_bias: bool = True
    proj_bias: bool = False
    inner_norms: bool = False
    name: str = "mixer"

    def state_elements(self, tensor_parallel: int = 1) -> StateElements:
        """Elements kept per sequence."""
        channels = share(self.inner, tensor_parallel)
        return StateElements(channels * (self.conv_kernel - 1), channels * self.state)

    @property
    def token_flop(self) -> int:
        """Per state number: decay 2 (exp(dt·A) and the product), input 2, read-out 2."""
        return 6 * self.inner * self.state + 2 * self.inner * self.conv_kernel

    def weights(self, hidden: int) -> tuple[Weight, ...]:
        """Its tensors in a model of that width."""
        return tuple(self._weights(hidden))

    def _weights(self, hidden: int) -> Iterator[Weight]:
        at, inner = f"{self.name}.", self.inner
        yield from linear(f"{at}in_proj", 2 * inner, hidden, "recurrent", units=inner, bias=self.proj_bias)
        yield from _conv(f"{at}conv1d", inner, self.conv_kernel, inner, bias=self.conv_bias)
        rows = self.dt_rank + 2 * self.state
        yield from linear(f"{at}x_proj", rows, inner, "recurrent", units=inner, split_input=True)
        if self.inner_norms:
            yield from norm(f"{at}dt_layernorm", self.dt_rank)
            yield from norm(f"{at}b_layernorm", self.state)
            yield from norm(f"{at}c_layernorm", self.state)
        yield from linear(f"{at}dt_proj", inner, self.dt_rank, "recurrent", units=inner, bias=True)
        yield Weight(f"{at}A_log", (inner, self.state), "recurrent", "other", units=inner)
        yield Weight(f"{at}D", (inner,), "recurrent", "other", units=inner)
        yield from linear(
            f"{at}out_proj",
            hidden,
            inner,
            "recurrent",
            units=inner,
            bias=self.proj_bias,
            split_input=True,
        )


@dataclass(frozen=True, slots=True)
class Mamba2:
    """State-space duality layer (Dao and Gu, 2024): heads with a scalar decay, B and C shared in groups."""

    num_heads: int
    head_dim: int
    state: int
    groups: int
    conv_kernel: int
    conv_bias: bool = True
    proj_bias: bool = False
    name: str = "mixer"

    @property
    def inner(self) -> int:
        """Channels of all heads."""
        return self.num_heads * self.head_dim

    def state_elements(self, tensor_parallel: int = 1) -> StateElements:
        """Elements kept per sequence."""
        heads, groups = share(self.num_heads, tensor_parallel), share(self.groups, tensor_parallel)
        channels = heads * self.head_dim + 2 * groups * self.state
        return StateElements(channels * (self.conv_kernel - 1), heads * self.head_dim * self.state)

    @property
    def token_flop(self) -> int:
        """Per state number: decay 1, input 2, read-out 2."""
        channels = self.inner + 2 * self.groups * self.state
        return 5 * self.inner * self.state + 2 * channels * self.conv_kernel

    def weights(self, hidden: int) -> tuple[Weight, ...]:
        """Its tensors in a model of that width."""
        return tuple(self._weights(hidden))

    def _weights(self, hidden: int) -> Iterator[Weight]:
        at, heads, inner = f"{self.name}.", self.num_heads, self.inner
        shared = 2 * self.groups * self.state
        # One module in the checkpoint: z, x and dt are cut by heads, B and C by groups.
        rows = ((2 * inner + heads, heads), (shared, self.groups))
        for index, (size, units) in enumerate(rows):
            yield from linear(
                f"{at}in_proj",
                size,
                hidden,
                "recurrent",
                units=units,
                bias=self.proj_bias,
                continues=index > 0,
            )
        for index, (size, units) in enumerate(((inner, heads), (shared, self.groups))):
            yield from _conv(
                f"{at}conv1d", size, self.conv_kernel, units, bias=self.conv_bias, continues=index > 0
            )
        for name in ("dt_bias", "A_log", "D"):
            yield Weight(f"{at}{name}", (heads,), "recurrent", "other", units=heads)
        yield Weight(f"{at}norm.weight", (inner,), "recurrent", "norm", units=heads)
        yield from linear(
            f"{at}out_proj",
            hidden,
            inner,
            "recurrent",
            units=heads,
            bias=self.proj_bias,
            split_input=True,
        )


@dataclass(frozen=True, slots=True)
class GatedDeltaNet:
    """Linear attention with a gated delta rule (Qwen3-Next): key_dim x value_dim numbers per value head."""

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int
    name: str = "linear_attn"

    @property
    def key_size(self) -> int:
        """Elements of all key heads of one token."""
        return self.num_key_heads * self.key_head_dim

    @property
    def value_size(self) -> int:
        """Elements of all value heads of one token."""
        return self.num_value_heads * self.value_head_dim

    def state_elements(self, tensor_parallel: int = 1) -> StateElements:
        """Elements kept per sequence."""
        keys = share(self.num_key_heads, tensor_parallel) * self.key_head_dim
        values = share(self.num_value_heads, tensor_parallel) * self.value_head_dim
        return StateElements((2 * keys + values) * (self.conv_kernel - 1), values * self.key_head_dim)

    @property
    def token_flop(self) -> int:
        """Per state number: decay 1, prediction 2, correction 2, read-out 2."""
        channels = 2 * self.key_size + self.value_size
        return 7 * self.value_size * self.key_head_dim + 2 * channels * self.conv_kernel

    def weights(self, hidden: int) -> tuple[Weight, ...]:
        """Its tensors in a model of that width."""
        return tuple(self._weights(hidden))

    def _weights(self, hidden: int) -> Iterator[Weight]:
        at, keys, values = f"{self.name}.", self.num_key_heads, self.num_value_heads
        yield from linear(f"{at}in_proj_qkvz", 2 * self.key_size, hidden, "recurrent", units=keys)
        yield from linear(
            f"{at}in_proj_qkvz", 2 * self.value_size, hidden, "recurrent", units=values, continues=True
        )
        yield from linear(f"{at}in_proj_ba", 2 * values, hidden, "recurrent", units=values)
        yield from _conv(f"{at}conv1d", 2 * self.key_size, self.conv_kernel, keys)
        yield from _conv(f"{at}conv1d", self.value_size, self.conv_kernel, values, continues=True)
        for name in ("dt_bias", "A_log"):
            yield Weight(f"{at}{name}", (values,), "recurrent", "other", units=values)
        yield from norm(f"{at}norm", self.value_head_dim, role="recurrent")
        yield from linear(
            f"{at}out_proj", hidden, self.value_size, "recurrent", units=values, split_input=True
        )


@dataclass(frozen=True, slots=True)
class LightningAttention:
    """Linear attention with a fixed decay (MiniMax-Text-01): head_dim x head_dim numbers per head."""

    num_heads: int
    head_dim: int
    name: str = "self_attn"

    def state_elements(self, tensor_parallel: int = 1) -> StateElements:
        """Elements kept per sequence."""
        return StateElements(0, share(self.num_heads, tensor_parallel) * self.head_dim**2)

    @property
    def token_flop(self) -> int:
        """Per state number: decay 1, input 2, read-out 2."""
        return 5 * self.num_heads * self.head_dim**2

    def weights(self, hidden: int) -> tuple[Weight, ...]:
        """Its tensors in a model of that width."""
        at, heads, size = f"{self.name}.", self.num_heads, self.num_heads * self.head_dim
        return (
            *linear(f"{at}qkv_proj", 3 * size, hidden, "recurrent", units=heads),
            *linear(f"{at}output_gate", size, hidden, "recurrent", units=heads),
            Weight(f"{at}norm.weight", (size,), "recurrent", "norm", units=heads),
            *linear(f"{at}out_proj", hidden, size, "recurrent", units=heads, split_input=True),
        )


Recurrent = Mamba | Mamba2 | GatedDeltaNet | LightningAttention


def _conv(
    module: str, channels: int, kernel: int, units: int, *, bias: bool = False, continues: bool = False
) -> Iterator[Weight]:
    """A causal convolution with one filter per channel."""
    yield Weight(
        f"{module}.weight", (channels, 1, kernel), "recurrent", "conv", units=units, continues=continues
    )
    if bias:
        yield Weight(f"{module}.bias", (channels,), "recurrent", "bias", units=units, continues=continues)
