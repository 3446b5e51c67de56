"""Op set backend in numpy: slow, plain, and what every other backend is held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rooftree.checkpoint.base import Tensor
from rooftree.checkpoint.formats import dequantize, is_quantized
from rooftree.kernels.ops import Floats


@dataclass(frozen=True, slots=True)
class ReferenceMatrix:
    """A dequantised weight (n, k) float32; ``quantised`` ones see their inputs rounded to int8 blocks."""

    values: Floats
    quantised: bool


@dataclass(frozen=True, slots=True)
class ReferenceRequest:
    """One request's tokens of the step: rows [begin, end), positions from ``start``, its block table."""

    begin: int
    end: int
    start: int
    block_ids: list[int]
    samples: bool


_LEAST = np.float32(1e-36)
"""A block whose largest magnitude is under this counts as zero."""


def round_to_int8(x: Floats) -> Floats:
    """Each block of 32 values of the last axis, rounded to 127ths of its largest magnitude."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    largest = np.abs(blocks).max(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.where(largest >= _LEAST, np.float32(127) / largest, np.float32(0)).astype(np.float32)
    rounded = np.rint(blocks * inverse) * (largest / np.float32(127))
    result: Floats = rounded.reshape(x.shape).astype(np.float32)
    return result


class ReferenceOps:
    """Computes at once, on (tokens, columns) float32 arrays. ``begin_step`` says what the step is."""

    def __init__(
        self,
        *,
        layers: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        cos: Floats,
        sin: Floats,
        block_size: int,
    ) -> None:
        self._heads, self._kv_heads, self._head_dim = heads, kv_heads, head_dim
        self._layers, self._block_size = layers, block_size
        self._cos, self._sin = cos, sin
        self._matrices: dict[str, ReferenceMatrix] = {}
        self._requests: list[ReferenceRequest] = []
        self._tokens = np.zeros(0, np.int32)
        self._k = self._v = np.zeros(0, np.float32)
        self._kv_dtype = "fp32"

    @property
    def weight_bytes(self) -> int:
        """Bytes of all matrices, dequantised."""
        return sum(matrix.values.nbytes for matrix in self._matrices.values())

    def allocate_kv_cache(self, num_blocks: int, dtype: str) -> None:
        """K and V, each (layers, blocks, block_size, kv_heads, head_dim), rounded as ``dtype`` rounds."""
        shape = (self._layers, num_blocks, self._block_size, self._kv_heads, self._head_dim)
        storage = np.float16 if dtype == "fp16" else np.float32
        self._k, self._v = np.zeros(shape, storage), np.zeros(shape, storage)
        self._kv_dtype = dtype

    def begin_step(self, token_ids: npt.NDArray[np.int32], requests: list[ReferenceRequest]) -> None:
        self._tokens = token_ids
        self._requests = requests

    # -- the op set

    def matrix(self, tensor: Tensor) -> ReferenceMatrix:
        if tensor.name not in self._matrices:
            self._matrices[tensor.name] = ReferenceMatrix(dequantize(tensor), is_quantized(tensor.dtype))
        return self._matrices[tensor.name]

    def embed(self, table: ReferenceMatrix) -> Floats:
        return np.take(table.values, self._tokens, axis=0)

    def rms_norm(self, x: Floats, weight: Floats, eps: float) -> Floats:
        scale = 1.0 / np.sqrt(np.mean(np.square(x), axis=-1, keepdims=True) + np.float32(eps))
        y: Floats = (x * scale * weight).astype(np.float32)
        return y

    def linear(
        self, x: Floats, weights: Sequence[ReferenceMatrix], biases: Sequence[Floats | None]
    ) -> Floats:
        outputs = [_product(x, w) + (0 if b is None else b) for w, b in zip(weights, biases, strict=True)]
        return np.concatenate(outputs, axis=-1)

    def linear_add(self, residual: Floats, x: Floats, weight: ReferenceMatrix, bias: Floats | None) -> Floats:
        return residual + self.linear(x, [weight], [bias])

    def gated_mlp(
        self,
        x: Floats,
        gate: ReferenceMatrix,
        up: ReferenceMatrix,
        gate_bias: Floats | None,
        up_bias: Floats | None,
    ) -> Floats:
        g = self.linear(x, [gate], [gate_bias])
        with np.errstate(over="ignore"):
            silu: Floats = g / (1 + np.exp(-g))
        return silu * self.linear(x, [up], [up_bias])

    def rope_and_cache(
        self, qkv: Floats, layer: int, q_norm: Floats | None, k_norm: Floats | None, eps: float
    ) -> Floats:
        heads = qkv.reshape(len(qkv), -1, self._head_dim).copy()
        q, k, v = np.split(heads, [self._heads, self._heads + self._kv_heads], axis=1)
        if q_norm is not None:
            q[:] = self.rms_norm(q, q_norm, eps)
        if k_norm is not None:
            k[:] = self.rms_norm(k, k_norm, eps)
        for request in self._requests:
            rows = slice(request.begin, request.end)
            positions = np.arange(request.start, request.start + request.end - request.begin)
            q[rows] = self._rotate(q[rows], positions) * np.float32(1 / np.sqrt(np.float32(self._head_dim)))
            k[rows] = self._rotate(k[rows], positions)
            blocks = np.asarray(request.block_ids)[positions // self._block_size]
            self._k[layer, blocks, positions % self._block_size] = to_kv_cache(k[rows], self._kv_dtype)
            self._v[layer, blocks, positions % self._block_size] = to_kv_cache(v[rows], self._kv_dtype)
        return heads.reshape(len(qkv), -1)

    def _rotate(self, x: Floats, positions: npt.NDArray[np.int64]) -> Floats:
        cos, sin = self._cos[positions][:, None], self._sin[positions][:, None]
        first, second = np.split(x, 2, axis=-1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    def attention(self, qkv: Floats, layer: int, window: int | None) -> Floats:
        heads = qkv.reshape(len(qkv), -1, self._head_dim)[:, : self._heads]
        group = self._heads // self._kv_heads
        out = np.empty((len(qkv), self._heads, self._head_dim), np.float32)
        for request in self._requests:
            end = request.start + request.end - request.begin
            table = request.block_ids[: -(-end // self._block_size)]
            k, v = (
                c[layer, table].reshape(-1, self._kv_heads, self._head_dim)[:end] for c in (self._k, self._v)
            )
            k, v = (np.repeat(c.astype(np.float32), group, axis=1) for c in (k, v))
            scores = np.einsum("qhd,khd->hqk", heads[request.begin : request.end], k)
            distance = np.arange(request.start, end)[:, None] - np.arange(end)
            visible = (distance >= 0) & (distance < (window or end + 1))
            scores = np.where(visible, scores, -np.inf)
            p = np.exp(scores - scores.max(axis=-1, keepdims=True))
            p /= p.sum(axis=-1, keepdims=True)
            out[request.begin : request.end] = np.einsum("hqk,khd->qhd", p, v)
        return out.reshape(len(qkv), -1)

    def select_sampled(self, x: Floats) -> Floats:
        return x[[request.end - 1 for request in self._requests if request.samples]]


def _product(x: Floats, weight: ReferenceMatrix) -> Floats:
    return (round_to_int8(x) if weight.quantised else x) @ weight.values.T


def to_kv_cache(x: Floats, dtype: str) -> Floats:
    """K or V (..., head_dim) as a cache of that dtype gives them back.

    ``fp16`` and ``bf16`` saturate. ``int8`` and ``fp8`` (E4M3) scale each head of each position to the
    largest code: 127 or 448.
    """
    if dtype == "fp32":
        return x
    if dtype == "fp16":
        return np.clip(x, -65504, 65504).astype(np.float16).astype(np.float32)
    if dtype == "bf16":
        return _round_to_bf16(np.clip(x, -_BF16_MAX, _BF16_MAX))
    limit = np.float32(127 if dtype == "int8" else 448)
    largest = np.abs(x).max(axis=-1, keepdims=True)
    inverse = np.divide(limit, largest, out=np.zeros_like(largest), where=largest >= _LEAST)
    codes = np.rint(x * inverse) if dtype == "int8" else _round_to_e4m3(x * inverse)
    restored: Floats = codes * (largest / limit)
    return restored


_BF16_MAX = np.float32((2 - 2**-7) * 2.0**127)


def _round_to_bf16(x: Floats) -> Floats:
    """The nearest bf16 value, ties to even; NaN stays."""
    bits = x.view(np.uint32)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    result: Floats = np.where(np.isnan(x), x, rounded.astype(np.uint32).view(np.float32))
    return result


def _round_to_e4m3(x: Floats) -> Floats:
    """The nearest E4M3 value (3 bits of mantissa, least exponent -6), ties to even."""
    exponent = np.maximum(np.frexp(x)[1] - 1, -6)
    unit = np.ldexp(np.float32(1), exponent - 3)
    rounded: Floats = np.rint(x / unit) * unit
    return rounded
