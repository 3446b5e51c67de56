"""Write safetensors files and config.json, by hand so that every field can be wrong on purpose."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rooftree.specs.model import ModelSpec, RopeSpec

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


class Entry(NamedTuple):
    """One tensor of a safetensors file: dtype name, shape, bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def safetensors_bytes(tensors: Mapping[str, Entry], metadata: Mapping[str, str] | None = None) -> bytes:
    """The bytes of a safetensors file, tensors in the mapping's order, header padded to 8 bytes."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    body = bytearray()
    for name, entry in tensors.items():
        span = [len(body), len(body) + len(entry.data)]
        header[name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": span}
        body += entry.data
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + bytes(body)


def write_safetensors(folder: Path, tensors: Mapping[str, Entry], shards: int = 1) -> list[Path]:
    """Write one model.safetensors, or several shards with their index; returns the files in order."""
    if shards == 1:
        path = folder / "model.safetensors"
        path.write_bytes(safetensors_bytes(tensors, {"format": "pt"}))
        return [path]
    names = list(tensors)
    weight_map: dict[str, str] = {}
    paths = []
    for index in range(shards):
        path = folder / f"model-{index + 1:05}-of-{shards:05}.safetensors"
        part = names[index::shards]
        path.write_bytes(safetensors_bytes({name: tensors[name] for name in part}, {"format": "pt"}))
        weight_map.update(dict.fromkeys(part, path.name))
        paths.append(path)
    total = sum(len(entry.data) for entry in tensors.values())
    index_json = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index_json))
    return paths


def hf_config(
    spec: ModelSpec, eos_token_id: int | Sequence[int] = 0, bos_token_id: int | None = None
) -> dict[str, Any]:
    """The config.json of a spec, in the spelling that the family's own releases use."""
    if spec.family in ("llama", "qwen3") and spec.qkv_bias != spec.o_bias:
        raise ValueError("one field, attention_bias, sets qkv_bias and o_bias together")
    config: dict[str, Any] = {
        "architectures": [ARCHITECTURES[spec.family]],
        "model_type": spec.family,
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "num_hidden_layers": spec.num_layers,
        "num_attention_heads": spec.num_heads,
        "num_key_value_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": spec.max_position_embeddings,
        "rms_norm_eps": spec.rms_norm_eps,
        "rope_theta": spec.rope.theta,
        "rope_scaling": rope_scaling(spec.rope),
        "tie_word_embeddings": spec.tie_word_embeddings,
        "eos_token_id": eos_token_id if isinstance(eos_token_id, int) else list(eos_token_id),
        "bos_token_id": bos_token_id,
    }
    if spec.family in ("llama", "qwen3"):
        config["attention_bias"] = spec.qkv_bias
    if spec.family == "llama":
        config["mlp_bias"] = spec.mlp_bias
    windowed = [window for window in spec.windows if window is not None]
    if spec.family == "mistral":
        config["sliding_window"] = windowed[0] if windowed else None
    if spec.family in ("qwen2", "qwen3") and windowed:
        kinds = {True: "full_attention", False: "sliding_attention"}
        config |= {"use_sliding_window": True, "sliding_window": windowed[0]}
        config["layer_types"] = [kinds[window is None] for window in spec.windows]
    return config


def rope_scaling(rope: RopeSpec) -> dict[str, Any] | None:
    """The rope_scaling entry of config.json, or None where nothing is scaled."""
    if rope.kind == "default":
        return None
    scaling: dict[str, Any] = {"rope_type": rope.kind, "factor": rope.factor}
    if rope.kind in ("llama3", "yarn"):
        scaling["original_max_position_embeddings"] = rope.original_max_position
    if rope.kind == "llama3":
        scaling |= {"low_freq_factor": rope.low_freq_factor, "high_freq_factor": rope.high_freq_factor}
    if rope.kind == "yarn":
        scaling |= {
            "beta_fast": rope.beta_fast,
            "beta_slow": rope.beta_slow,
            "attention_factor": rope.attention_factor,
        }
    return scaling
