"""Tiny models: specs, weights under canonical names, and both file formats."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rigs.gguf_writer import TENSOR_TYPES, GgufTensor, interleave_rotary_rows, write_gguf
from rigs.hf_writer import Entry, hf_config, write_safetensors
from rigs.tokenizer import TinyTokenizer, tiny_tokenizer
from rooftree.checkpoint.base import DType
from rooftree.checkpoint.formats import dequantize_bytes, quantize
from rooftree.checkpoint.layout import tensor_shapes
from rooftree.specs.model import Family, ModelSpec, RopeSpec

FAMILIES: tuple[Family, ...] = ("llama", "mistral", "qwen2", "qwen3")

Weights = dict[str, np.ndarray]
DTypes = DType | Mapping[str, DType] | Callable[[str], DType]

GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def tiny_spec(family: Family = "llama", **over: Any) -> ModelSpec:
    """R2: two layers of 64 with 4 heads of 16 over 2 KV heads; any field may be overridden.

    Mistral sees 24 tokens, Qwen2 has its biases and Qwen3 its norms. ``windows`` follows num_layers.
    """
    fields: dict[str, Any] = {
        "family": family,
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope": RopeSpec(),
        "tie_word_embeddings": False,
        "qkv_bias": family == "qwen2",
        "qk_norm": family == "qwen3",
    } | over
    fields.setdefault("windows", (24 if family == "mistral" else None,) * fields["num_layers"])
    return ModelSpec(**fields)


def random_weights(spec: ModelSpec, seed: int = 0) -> Weights:
    """R2's float32 weights: matrices with unit gain, norms about 1, biases about 0.1."""
    rng = np.random.default_rng(seed)
    return {name: _random(rng, name, shape) for name, shape in tensor_shapes(spec).items()}


def _random(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    values = rng.standard_normal(shape, dtype=np.float32)
    if "norm" in name:
        return 1 + values * np.float32(0.1)
    if name.endswith("bias"):
        return values * np.float32(0.1)
    if name == "model.embed_tokens.weight":
        return values
    return values / np.float32(np.sqrt(shape[1]))


def successor_weights(
    spec: ModelSpec, successor: Sequence[int], seed: int = 0, scale: float = 1.0
) -> Weights:
    """R1: greedy decoding walks t -> successor[t], whatever stands before t.

    Layers add nothing to the residual stream, norms are 1, embedding rows have RMS 1 and head row
    ``successor[t]`` is embedding row t times ``scale`` (less than 1 flattens the distribution). ``successor``
    must be a permutation and the spec untied, at least 64 wide.
    """
    if sorted(successor) != list(range(spec.vocab_size)) or spec.tie_word_embeddings or spec.hidden_size < 64:
        raise ValueError("a successor model needs a permutation, an untied head and a width of 64 or more")
    weights = random_weights(spec, seed)
    for name, values in weights.items():
        if "norm" in name:
            values.fill(1)
        elif name.endswith(("o_proj.weight", "down_proj.weight", "bias")):
            values.fill(0)
    embedding = weights["model.embed_tokens.weight"]
    embedding /= np.sqrt(np.mean(embedding**2, axis=1, keepdims=True))
    weights["lm_head.weight"][list(successor)] = embedding * np.float32(scale)
    return weights


def path_successor(vocab_size: int, path: Sequence[int]) -> list[int]:
    """A permutation that walks round ``path`` (all different); every other token follows itself."""
    if len(set(path)) != len(path):
        raise ValueError("a token can have one successor only: the path repeats one")
    successor = list(range(vocab_size))
    for here, after in zip(path, [*path[1:], path[0]], strict=True):
        successor[here] = after
    return successor


def stored(weights: Weights, dtype: DTypes) -> Weights:
    """The float32 values that a file of these weights really holds."""
    return {
        name: dequantize_bytes(kind, quantize(kind, values)).reshape(values.shape)
        for name, values in weights.items()
        for kind in [_dtype_of(dtype, name, values)]
    }


def write_hf_model(
    folder: Path,
    spec: ModelSpec,
    weights: Weights,
    *,
    dtype: DTypes = "F32",
    shards: int = 1,
    tokenizer: TinyTokenizer | None = None,
    config: Mapping[str, Any] | None = None,
    generation_config: Mapping[str, Any] | None = None,
) -> Path:
    """A Hugging Face directory; ``config`` overrides fields of config.json. Returns the directory."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer or tiny_tokenizer(spec.vocab_size)
    entries = {}
    for name, values in weights.items():
        kind = _dtype_of(dtype, name, values)
        entries[name] = Entry(kind, values.shape, quantize(kind, values).tobytes())
    write_safetensors(folder, entries, shards)
    document = hf_config(spec, tokenizer.eos_token_id, tokenizer.bos_token_id) | dict(config or {})
    (folder / "config.json").write_text(json.dumps(document))
    (folder / "tokenizer.json").write_bytes(tokenizer.hf_json())
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer.hf_config()))
    if generation_config is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation_config))
    return folder


def write_gguf_model(
    path: Path,
    spec: ModelSpec,
    weights: Weights,
    *,
    dtype: DTypes = "F32",
    tokenizer: TinyTokenizer | None = None,
    metadata: Mapping[str, Any] | None = None,
    version: int = 3,
    alignment: int = 32,
) -> Path:
    """A GGUF file (llama and mistral as arch llama, Q and K interleaved); ``metadata`` overrides keys.

    ``dtype`` applies to matrices; vectors are F32, as llama.cpp writes them.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer or tiny_tokenizer(spec.vocab_size)
    entries = gguf_metadata(spec) | tokenizer.gguf_metadata() | dict(metadata or {})
    tensors = gguf_tensors(spec, weights, dtype)
    return write_gguf(path, entries, tensors, version=version, alignment=alignment)


def gguf_tensors(spec: ModelSpec, weights: Weights, dtype: DTypes = "F32") -> list[GgufTensor]:
    """The tensors of such a file, with the rope_freqs tensor where the spec has frequency factors."""
    tensors = []
    for name, values in weights.items():
        kind: DType = "F32" if values.ndim == 1 else _dtype_of(dtype, name, values)
        if spec.family in ("llama", "mistral") and ".self_attn.q_proj" in name:
            values = interleave_rotary_rows(values, spec.num_heads)
        elif spec.family in ("llama", "mistral") and ".self_attn.k_proj" in name:
            values = interleave_rotary_rows(values, spec.num_kv_heads)
        data = quantize(kind, values).tobytes()
        tensors.append(GgufTensor(gguf_name(name), values.shape, TENSOR_TYPES[kind], data))
    if spec.rope.freq_factors:
        factors = np.array(spec.rope.freq_factors, np.float32)
        tensors.append(GgufTensor("rope_freqs.weight", factors.shape, 0, factors.tobytes()))
    return tensors


def gguf_name(canonical: str) -> str:
    """The name that GGUF gives to a canonical tensor."""
    base, suffix = canonical.rsplit(".", 1)
    if base.startswith("model.layers."):
        _, _, layer, rest = base.split(".", 3)
        return f"blk.{layer}.{GGUF_NAMES[rest]}.{suffix}"
    return f"{GGUF_NAMES[base]}.{suffix}"


def gguf_metadata(spec: ModelSpec) -> dict[str, Any]:
    """The metadata that llama.cpp's converter would write for a spec."""
    arch = "llama" if spec.family == "mistral" else spec.family
    windowed = [window for window in spec.windows if window is not None]
    fields: dict[str, Any] = {
        "block_count": spec.num_layers,
        "context_length": spec.max_position_embeddings,
        "embedding_length": spec.hidden_size,
        "feed_forward_length": spec.intermediate_size,
        "attention.head_count": spec.num_heads,
        "attention.head_count_kv": spec.num_kv_heads,
        "attention.layer_norm_rms_epsilon": float(spec.rms_norm_eps),
        "attention.key_length": spec.head_dim,
        "attention.value_length": spec.head_dim,
        "rope.dimension_count": spec.head_dim,
        "rope.freq_base": float(spec.rope.theta),
        "vocab_size": spec.vocab_size,
    }
    if windowed:
        fields["attention.sliding_window"] = windowed[0]
    fields |= _gguf_rope(spec.rope)
    names = {"general.architecture": arch, "general.name": f"tiny {spec.family}"}
    return names | {f"{arch}.{key}": value for key, value in fields.items()}


def _gguf_rope(rope: RopeSpec) -> dict[str, Any]:
    if rope.kind == "default":
        return {}
    if rope.kind == "llama3":
        raise ValueError("GGUF has no llama3 rope scaling: it stores freq_factors")
    fields: dict[str, Any] = {"rope.scaling.type": rope.kind, "rope.scaling.factor": float(rope.factor)}
    if rope.kind == "yarn":
        # The stored factor multiplies the one that follows from the scaling factor.
        implied = 0.1 * np.log(rope.factor) + 1
        fields |= {
            "rope.scaling.original_context_length": rope.original_max_position,
            "rope.scaling.attn_factor": float(rope.attention_factor / implied),
            "rope.scaling.yarn_beta_fast": float(rope.beta_fast),
            "rope.scaling.yarn_beta_slow": float(rope.beta_slow),
        }
    return fields


def _dtype_of(dtype: DTypes, name: str, values: np.ndarray) -> DType:
    """Vectors are floats in every file: any other choice leaves them F32."""
    kind: DType = (
        dtype if isinstance(dtype, str) else dtype(name) if callable(dtype) else dtype.get(name, "F32")
    )
    return "F32" if values.ndim == 1 and kind not in ("F32", "F16", "BF16") else kind
