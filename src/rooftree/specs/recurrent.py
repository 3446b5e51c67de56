"""Layers that keep a state of constant size per sequence: state-space and linear-attention layers.

Each has the same four facts: ``conv_state`` and ``recurrent_state`` (elements kept per sequence), ``token_flop``
(FLOP of the recurrence for one token, projections not included: they are ``linear`` weights) and ``weights``.
"""

from __future__ import annotations

from dataclasses import dataclass

from rooftree.specs.weight import Weight


@dataclass(frozen=True, slots=True)
class Mamba:
    """Selective state-space layer (Gu and Dao, 2023), as in Mamba and Jamba."""

    inner: int
    state: int
    conv_kernel: int
    dt_rank: int
    conv_bias: bool = True
    proj_bias: bool = False
    inner_norms: bool = False
    name: str = "mixer"

    @property
    def conv_state(self) -> int:
        """Elements of the convolution's window kept per sequence."""
        return self.inner * (self.conv_kernel - 1)

    @property
    def recurrent_state(self) -> int:
        """Elements of the recurrent state kept per sequence."""
        return self.inner * self.state

    @property
    def units(self) -> int:
        """Into how many equal parts tensor parallelism can cut the state."""
        return self.inner

    @property
    def token_flop(self) -> int:
        """FLOP of the recurrence for one token: decay, input, read-out and the convolution."""
        return 6 * self.inner * self.state + 2 * self.inner * self.conv_kernel

    def weights(self, hidden: int) -> tuple[Weight, ...]:
        """Its tensors in a model of that width."""
        raise NotImplementedError


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


@dataclass(frozen=True, slots=True)
class GatedDeltaNet:
    """Linear attention with a gated delta rule (Qwen3-Next): a matrix of key_dim x value_dim per value head."""

    num_key_heads: int
    num_value_heads: int
    key_head_dim: int
    value_head_dim: int
    conv_kernel: int
    name: str = "linear_attn"


@dataclass(frozen=True, slots=True)
class LightningAttention:
    """Linear attention with a fixed decay per head (MiniMax-Text-01): a matrix of head_dim x head_dim per head."""

    num_heads: int
    head_dim: int
    name: str = "self_attn"


Recurrent = Mamba | Mamba2 | GatedDeltaNet | LightningAttention
