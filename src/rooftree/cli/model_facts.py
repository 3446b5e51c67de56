"""What there is to say about a model: counts of its Architecture, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rooftree.specs.architecture import Architecture, LayerSpec, layer_kv_bytes, layer_state_bytes

# The engine's own int8 and fp8 have a scale per head; other engines' fp8 has none.
KV_DTYPES = ("fp16", "bf16", "fp32", "fp8", "fp8-per-head")


def model_facts(
    architecture: Architecture, file_bytes: Mapping[int | None, int] | None = None
) -> dict[str, Any]:
    """Sizes in bytes, KV per token as kept where every window is still open.

    Args:
        architecture: the model.
        file_bytes: bytes of weights in its file by layer (None: outside the layers); None: as counted.
    """
    by_layer = architecture.layer_weight_bytes() if file_bytes is None else file_bytes
    counted = architecture.weight_bytes() if file_bytes is None else sum(file_bytes.values())
    return {
        "architecture": architecture.name,
        "parameters": architecture.num_parameters,
        "parameters_active": architecture.num_parameters_active,
        "parameters_by_part": dict(architecture.parameters_by_role()),
        "weight_bytes": counted,
        "weight_format": architecture.scheme.name,
        "kv_bytes_per_token": {dtype: architecture.kv_bytes_per_token(dtype) for dtype in KV_DTYPES},
        "kv_bytes_at_context": _kv_at_context(architecture),
        "state_bytes_per_sequence": architecture.state_bytes_per_sequence("fp16"),
        "context": architecture.max_positions,
        "layers": architecture.num_layers,
        "hidden_size": architecture.hidden_size,
        "vocab_size": architecture.vocab_size,
        "tied_embeddings": architecture.tied_head,
        "notes": list(architecture.notes),
        "layer_detail": [
            _layer(architecture, index, layer, by_layer[index])
            for index, layer in enumerate(architecture.layers)
        ],
    }


def _kv_at_context(architecture: Architecture) -> dict[str, int] | None:
    """A sequence of full length in fp16: where every token is kept, and where windows are freed."""
    tokens = architecture.max_positions
    if tokens is None:
        return None
    return {
        "all_kept": architecture.kv_bytes(tokens, "fp16"),
        "windows_freed": architecture.kv_bytes(tokens, "fp16", windowed=True),
    }


def _layer(architecture: Architecture, index: int, layer: LayerSpec, weight_bytes: int) -> dict[str, Any]:
    weights = layer.weights(architecture.hidden_size)
    return {
        "layer": index,
        "mixer": _part(layer.mixer),
        "feed_forward": _part(layer.feed_forward),
        "parameters": sum(weight.parameters for weight in weights),
        "parameters_active": sum(weight.parameters_active for weight in weights),
        "weight_bytes": weight_bytes,
        "kv_bytes_per_token": layer_kv_bytes(layer, 1, "fp16"),
        "state_bytes_per_sequence": layer_state_bytes(layer, "fp16", architecture.recurrent_dtype),
    }


def _part(part: Any) -> dict[str, Any] | None:
    """Kind and numbers of a part; names of modules say nothing more."""
    if part is None:
        return None
    numbers = {key: value for key, value in asdict(part).items() if _is_number(key, value)}
    return {"kind": type(part).__name__, **numbers}


def _is_number(key: str, value: Any) -> bool:
    return key in ("window_kind", "qk_norm") or value is None or isinstance(value, int | bool)
