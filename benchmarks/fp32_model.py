"""The model in plain float32 numpy: dequantised weights, no rounding of activations or cache, one sequence.

It shares the definition of the families and the rotary tables with the engine, and nothing that computes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rooftree.checkpoint.base import Checkpoint, Tensor
from rooftree.checkpoint.formats import dequantize
from rooftree.kernels.ops import Floats
from rooftree.models.decoder import decoder, load_weights
from rooftree.models.rope import rope_tables


class Fp32Model:
    """Next-token logits at every position of a text."""

    def __init__(self, checkpoint: Checkpoint, *, length: int) -> None:
        self._spec = spec = checkpoint.spec
        cos, sin = rope_tables(spec.rope, spec.head_dim, length)
        self._ops = _Fp32Ops(spec.num_heads, spec.num_kv_heads, spec.head_dim, cos, sin)
        self._weights = load_weights(self._ops, spec, checkpoint.tensors)

    def logits(self, tokens: Sequence[int]) -> Floats:
        """(positions, vocab), for at most ``length`` tokens from position 0."""
        self._ops.tokens = np.asarray(tokens)
        return decoder(self._ops, self._spec, self._weights)


class _Fp32Ops:
    """The op set (see ``rooftree.kernels.ops.Ops``) on (tokens, columns) arrays of one whole sequence."""

    def __init__(self, heads: int, kv_heads: int, head_dim: int, cos: Floats, sin: Floats) -> None:
        self._heads, self._kv_heads, self._head_dim = heads, kv_heads, head_dim
        self._cos, self._sin = cos, sin
        self._matrices: dict[str, Floats] = {}
        self.tokens: npt.NDArray[np.int64] = np.zeros(0, np.int64)

    def matrix(self, tensor: Tensor) -> Floats:
        if tensor.name not in self._matrices:
            self._matrices[tensor.name] = dequantize(tensor)
        return self._matrices[tensor.name]

    def embed(self, table: Floats) -> Floats:
        return table[self.tokens]

    def rms_norm(self, x: Floats, weight: Floats, eps: float) -> Floats:
        mean = np.mean(np.square(x), axis=-1, keepdims=True)
        normed: Floats = x / np.sqrt(mean + np.float32(eps)) * weight
        return normed

    def linear(self, x: Floats, weights: Sequence[Floats], biases: Sequence[Floats | None]) -> Floats:
        return np.concatenate([_affine(x, w, b) for w, b in zip(weights, biases, strict=True)], axis=1)

    def linear_add(self, residual: Floats, x: Floats, weight: Floats, bias: Floats | None) -> Floats:
        return residual + _affine(x, weight, bias)

    def gated_mlp(
        self, x: Floats, gate: Floats, up: Floats, gate_bias: Floats | None, up_bias: Floats | None
    ) -> Floats:
        g = _affine(x, gate, gate_bias)
        gated: Floats = g / (1 + np.exp(-g)) * _affine(x, up, up_bias)
        return gated

    def rope_and_cache(
        self, qkv: Floats, layer: int, q_norm: Floats | None, k_norm: Floats | None, eps: float
    ) -> Floats:
        heads = qkv.reshape(len(qkv), -1, self._head_dim)
        q, k, v = np.split(heads, [self._heads, self._heads + self._kv_heads], axis=1)
        q = self._rotate(q if q_norm is None else self.rms_norm(q, q_norm, eps))
        k = self._rotate(k if k_norm is None else self.rms_norm(k, k_norm, eps))
        return np.concatenate([q, k, v], axis=1).reshape(len(qkv), -1)

    def _rotate(self, x: Floats) -> Floats:
        cos, sin = self._cos[: len(x), None], self._sin[: len(x), None]
        first, second = np.split(x, 2, axis=-1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    def attention(self, qkv: Floats, layer: int, window: int | None) -> Floats:
        n, group = len(qkv), self._heads // self._kv_heads
        heads = qkv.reshape(n, -1, self._head_dim).transpose(1, 0, 2)
        k, v = heads[self._heads : -self._kv_heads], heads[-self._kv_heads :]
        distance = np.arange(n)[:, None] - np.arange(n)
        hidden = (distance < 0) | (distance >= (window or n))
        out = np.empty((self._heads, n, self._head_dim), np.float32)
        for h in range(self._heads):
            scores = heads[h] @ k[h // group].T / np.sqrt(np.float32(self._head_dim))
            scores[hidden] = -np.inf
            p = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[h] = p @ v[h // group] / p.sum(axis=1, keepdims=True)
        return out.transpose(1, 0, 2).reshape(n, -1)

    def select_sampled(self, x: Floats) -> Floats:
        return x


def _affine(x: Floats, weight: Floats, bias: Floats | None) -> Floats:
    product: Floats = x @ weight.T
    return product if bias is None else product + bias
