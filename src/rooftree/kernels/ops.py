"""The op set that model families are written in. One definition runs on every backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from rooftree.checkpoint.base import Tensor

Floats = npt.NDArray[np.float32]

V = TypeVar("V")
"""A value: one row of float32 per token of the step (or per sampled token). An array, or a name for one."""

W = TypeVar("W")
"""A weight matrix (out_features, in_features) as the backend keeps it."""


class Ops(Protocol[V, W]):
    """What a decoder layer is made of.

    A backend either computes at once (the reference) or records (the CPU program). Rows are independent: only
    ``attention`` lets one token's row touch another's.
    """

    def matrix(self, tensor: Tensor) -> W:
        """Take a weight into the backend's own layout; the tensor's bytes are not needed afterwards."""

    def embed(self, table: W) -> V:
        """Row ``token_ids[i]`` of the table for each token i."""

    def rms_norm(self, x: V, weight: Floats, eps: float) -> V:
        """``x / sqrt(mean(x**2) + eps) * weight``, per row."""

    def linear(self, x: V, weights: Sequence[W], biases: Sequence[Floats | None]) -> V:
        """``x @ w.T + b`` for each weight, outputs side by side. Quantised weights meet int8 inputs."""

    def linear_add(self, residual: V, x: V, weight: W, bias: Floats | None) -> V:
        """``residual + (x @ weight.T + bias)``; the residual value must not be used again."""

    def gated_mlp(self, x: V, gate: W, up: W, gate_bias: Floats | None, up_bias: Floats | None) -> V:
        """``silu(x @ gate.T) * (x @ up.T)``."""

    def rope_and_cache(
        self, qkv: V, layer: int, q_norm: Floats | None, k_norm: Floats | None, eps: float
    ) -> V:
        """Normalise heads (where weights are given), rotate, scale queries by head_dim**-0.5, write K and V.

        ``qkv`` rows are [query heads | key heads | value heads]; the returned value replaces it.
        """

    def attention(self, qkv: V, layer: int, window: int | None) -> V:
        """Softmax attention of each query over its request's K and V as the cache stores them, newest too."""

    def select_sampled(self, x: V) -> V:
        """Only the rows after which a token is chosen, in request order."""
