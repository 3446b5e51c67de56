"""Models of a given shape with random weights, in memory: as fast or slow as real ones."""

from __future__ import annotations

import numpy as np

from rooftree.checkpoint.base import Checkpoint, DType, Tensor, TextAssets
from rooftree.checkpoint.formats import quantize
from rooftree.checkpoint.layout import tensor_shapes
from rooftree.specs.model import ModelSpec, RopeSpec

_SPREAD = 0.02
_DISTINCT_ROWS = 16


def random_tensor(name: str, shape: tuple[int, ...], dtype: DType) -> Tensor:
    """Normal numbers of standard deviation 0.02; rows repeat, which no kernel can take advantage of."""
    rng = np.random.default_rng(0)
    rows = shape[0] if len(shape) > 1 else 1
    some = rng.standard_normal((min(rows, _DISTINCT_ROWS), shape[-1]), np.float32) * np.float32(_SPREAD)
    stored = quantize(dtype, some).reshape(len(some), -1)
    repeats = -(-rows // len(some))
    return Tensor(name, shape, dtype, np.tile(stored, (repeats, 1))[:rows].reshape(-1), name)


def random_checkpoint(spec: ModelSpec, dtype: DType) -> Checkpoint:
    """A model whose matrices are all in one format; its norms are ones."""
    tensors = {
        name: random_tensor(name, shape, dtype) if len(shape) > 1 else _ones(name, shape)
        for name, shape in tensor_shapes(spec).items()
    }
    return Checkpoint("random", "random weights", "gguf", spec, tensors, TextAssets())


def llama_spec(
    *, hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, vocab: int, positions: int
) -> ModelSpec:
    """A model of the Llama line with heads of ``hidden / heads`` and a tied head."""
    return ModelSpec(
        family="llama",
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=hidden // heads,
        max_position_embeddings=positions,
        rms_norm_eps=1e-5,
        rope=RopeSpec(),
        tie_word_embeddings=True,
        windows=(None,) * layers,
    )


def _ones(name: str, shape: tuple[int, ...]) -> Tensor:
    return Tensor(name, shape, "F32", np.ones(shape, np.float32).view(np.uint8), name)
