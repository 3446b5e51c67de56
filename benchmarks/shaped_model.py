"""Models of a given shape with random weights: as fast or slow as real ones, and free to make.

Their vocabulary is byte-level: 256 bytes, one merge, and names without a meaning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from model_writers import NewTensor, write_folder, write_gguf
from rooftree.checkpoint.base import DType
from rooftree.checkpoint.formats import FORMATS, quantize
from rooftree.specs.model import ModelSpec, RopeSpec
from rooftree.text.gguf_vocab import CONTROL, NORMAL

_SPREAD = 0.02
"""Standard deviation of the weights, as initialised models have."""
_NIBBLE_SPREAD = 4.6
"""That of whole numbers drawn evenly from -8 to 7."""


def llama_1b(layers: int = 16) -> ModelSpec:
    """The shape of Llama-3.2-1B, or with other layers; its rotary scaling left out."""
    return ModelSpec(
        family="llama",
        vocab_size=128_256,
        hidden_size=2048,
        intermediate_size=8192,
        num_layers=layers,
        num_heads=32,
        num_kv_heads=8,
        head_dim=64,
        max_position_embeddings=131_072,
        rms_norm_eps=1e-5,
        rope=RopeSpec(theta=500_000.0),
        tie_word_embeddings=True,
        windows=(None,) * layers,
    )


def write_q4_0(path: Path, shape: ModelSpec) -> None:
    """A GGUF file that llama.cpp loads as well, every matrix in Q4_0."""
    rng = np.random.default_rng(0)
    tensors = [
        NewTensor(gguf, size, "Q4_0", _random_q4_0(rng, size))
        if len(size) == 2
        else NewTensor(gguf, size, "F32", _ones("F32", size))
        for gguf, _, size in _tensors(shape)
    ]
    vocabulary = {f"tokenizer.ggml.{key}": value for key, value in _vocabulary(shape.vocab_size).items()}
    write_gguf(path, _metadata(shape, path.stem) | vocabulary, tensors)


def write_floats(folder: Path, shape: ModelSpec, dtype: DType) -> None:
    """A Hugging Face directory with float weights."""
    rng = np.random.default_rng(0)
    tensors = [
        NewTensor(hf, size, dtype, _random_floats(rng, dtype, size) if len(size) == 2 else _ones(dtype, size))
        for _, hf, size in _tensors(shape)
    ]
    write_folder(folder, shape, dtype, tensors, _vocabulary(shape.vocab_size))


def _tensors(shape: ModelSpec) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """GGUF's name, Hugging Face's, and the shape, of each tensor."""
    h, m = shape.hidden_size, shape.intermediate_size
    q, kv = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    parts: list[tuple[str, str, tuple[int, ...]]] = [
        ("attn_norm", "input_layernorm", (h,)),
        ("attn_q", "self_attn.q_proj", (q, h)),
        ("attn_k", "self_attn.k_proj", (kv, h)),
        ("attn_v", "self_attn.v_proj", (kv, h)),
        ("attn_output", "self_attn.o_proj", (h, q)),
        ("ffn_norm", "post_attention_layernorm", (h,)),
        ("ffn_gate", "mlp.gate_proj", (m, h)),
        ("ffn_up", "mlp.up_proj", (m, h)),
        ("ffn_down", "mlp.down_proj", (h, m)),
    ]
    yield "token_embd.weight", "model.embed_tokens.weight", (shape.vocab_size, h)
    for i in range(shape.num_layers):
        for gguf, hf, size in parts:
            yield f"blk.{i}.{gguf}.weight", f"model.layers.{i}.{hf}.weight", size
    yield "output_norm.weight", "model.norm.weight", (h,)


def _random_q4_0(rng: np.random.Generator, size: tuple[int, ...]) -> Callable[[], npt.NDArray[np.uint8]]:
    block, block_bytes = FORMATS["Q4_0"]
    scale = np.array([_SPREAD / _NIBBLE_SPREAD], "<f2").view(np.uint8)

    def make() -> npt.NDArray[np.uint8]:
        blocks = rng.integers(0, 256, (size[0] * size[1] // block, block_bytes), np.uint8)
        blocks[:, : len(scale)] = scale
        return blocks.reshape(-1)

    return make


def _random_floats(
    rng: np.random.Generator, dtype: DType, size: tuple[int, ...]
) -> Callable[[], npt.NDArray[np.uint8]]:
    return lambda: quantize(dtype, rng.standard_normal(size, np.float32) * np.float32(_SPREAD))


def _ones(dtype: DType, size: tuple[int, ...]) -> Callable[[], npt.NDArray[np.uint8]]:
    return lambda: quantize(dtype, np.ones(size, np.float32))


def _metadata(shape: ModelSpec, name: str) -> dict[str, Any]:
    return {
        "general.architecture": "llama",
        "general.name": name,
        "general.file_type": 2,
        "llama.block_count": shape.num_layers,
        "llama.context_length": shape.max_position_embeddings,
        "llama.embedding_length": shape.hidden_size,
        "llama.feed_forward_length": shape.intermediate_size,
        "llama.attention.head_count": shape.num_heads,
        "llama.attention.head_count_kv": shape.num_kv_heads,
        "llama.attention.layer_norm_rms_epsilon": shape.rms_norm_eps,
        "llama.rope.freq_base": shape.rope.theta,
        "llama.rope.dimension_count": shape.head_dim,
        "llama.vocab_size": shape.vocab_size,
    }


def _vocabulary(size: int) -> dict[str, Any]:
    """GGUF's metadata of a byte-level vocabulary, keys without their prefix."""
    letters = _byte_letters()
    merged = letters[ord(" ")] + "t"
    tokens = [*letters, merged, "<|end|>"]
    tokens += [f"[unused{i}]" for i in range(len(tokens), size)]
    types = [NORMAL] * size
    types[tokens.index("<|end|>")] = CONTROL
    end = tokens.index("<|end|>")
    return {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": types,
        "merges": [f"{merged[0]} {merged[1]}"],
        "bos_token_id": end,
        "eos_token_id": end,
        "add_bos_token": False,
    }


def _byte_letters() -> list[str]:
    """GPT-2's visible letter for each byte: itself where it can be printed, else one from 256 on."""
    printed = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printed else next(others)) for byte in range(256)]
