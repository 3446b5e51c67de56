"""config.json of a Hugging Face directory as a ModelSpec.

What a field means, and its value where it is absent, follows the model classes of ``transformers``; a field
that would change the result and is not supported is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rooftree.checkpoint.fields import Fields
from rooftree.checkpoint.hf_rope import rope_spec
from rooftree.errors import ModelError
from rooftree.specs.model import Family, ModelSpec

ARCHITECTURES: dict[str, Family] = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
_MODEL_TYPES: dict[str, Family] = {family: family for family in ARCHITECTURES.values()}

_QWEN3_HEAD_DIM = 128
_DEFAULT_WINDOW = 4096
_DEFAULT_FIRST_WINDOW_LAYER = 28
_FULL, _SLIDING = "full_attention", "sliding_attention"


def parse_config(document: Any, source: str) -> ModelSpec:
    """The spec that a parsed config.json describes.

    Fields nested in ``text_config`` count as if they stood at the top. How weights are quantised is no part
    of a spec (see ``hf_quantization``).

    Raises:
        ModelError: an architecture, rope type or activation that is not supported, or a number that is
            missing or impossible. The message names ``source`` and the field.
    """
    if not isinstance(document, Mapping):
        raise ModelError(f"{source}: must be a JSON object")
    nested = document.get("text_config")
    values = {**nested, **document} if isinstance(nested, Mapping) else dict(document)
    fields = Fields(values, source)
    family = _family(fields)
    _refuse_unsupported(fields)
    num_layers = fields.layers("num_hidden_layers")
    hidden, heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    kv_heads = fields.count("num_key_value_heads", heads)
    if heads % kv_heads:
        fields.fail("num_key_value_heads", f"is {kv_heads}, which does not divide {heads} attention heads")
    head_dim = _head_dim(fields, family, hidden, heads)
    bias = fields.flag("attention_bias", False) if family in ("llama", "qwen3") else False
    max_position = fields.count("max_position_embeddings")
    return ModelSpec(
        family=family,
        vocab_size=fields.count("vocab_size"),
        hidden_size=hidden,
        intermediate_size=fields.count("intermediate_size"),
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=max_position,
        rms_norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=rope_spec(fields, max_position),
        tie_word_embeddings=fields.flag("tie_word_embeddings", False),
        windows=_windows(fields, family, num_layers),
        qkv_bias=bias or family == "qwen2",
        o_bias=bias,
        mlp_bias=fields.flag("mlp_bias", False) if family == "llama" else False,
        qk_norm=family == "qwen3",
    )


def _family(fields: Fields) -> Family:
    named = fields.get("architectures")
    if named is None:
        model_type = fields.text("model_type")
        if model_type not in _MODEL_TYPES:
            fields.fail("model_type", f"{model_type!r} is not supported; {_supported()}")
        return _MODEL_TYPES[model_type]
    if not isinstance(named, list) or len(named) != 1 or named[0] not in tuple(ARCHITECTURES):
        fields.fail("architectures", f"{named!r} is not supported; {_supported()}")
    return ARCHITECTURES[named[0]]


def _supported() -> str:
    return f"supported are {', '.join(ARCHITECTURES)}"


def _refuse_unsupported(fields: Fields) -> None:
    activation = fields.text("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        fields.fail("hidden_act", f"{activation!r} is not supported; supported is 'silu'")


def _head_dim(fields: Fields, family: Family, hidden: int, heads: int) -> int:
    """Given, or hidden / heads. Only Qwen3 has a default of its own, where the field is left out."""
    if fields.get("head_dim") is not None:
        head_dim = fields.count("head_dim")
    elif family == "qwen3" and "head_dim" not in fields.values:
        head_dim = _QWEN3_HEAD_DIM
    elif hidden % heads:
        fields.fail("num_attention_heads", f"is {heads}, which does not divide hidden_size {hidden}")
    else:
        head_dim = hidden // heads
    if head_dim % 2:
        fields.fail("head_dim", f"is {head_dim}; rotary embeddings need an even number")
    return head_dim


def _windows(fields: Fields, family: Family, num_layers: int) -> tuple[int | None, ...]:
    if family == "llama":
        return (None,) * num_layers
    if family == "mistral":
        window = _sliding_window(fields)
        kinds = [_FULL if window is None else _SLIDING] * num_layers
        if _layer_types(fields, kinds) != kinds:
            fields.fail("layer_types", "must agree with sliding_window in every layer of a Mistral model")
        return (window,) * num_layers
    return _qwen_windows(fields, num_layers)


def _sliding_window(fields: Fields) -> int | None:
    """Null means none; only a field that is left out has the default."""
    if "sliding_window" in fields.values and fields.get("sliding_window") is None:
        return None
    return fields.count("sliding_window", _DEFAULT_WINDOW)


def _qwen_windows(fields: Fields, num_layers: int) -> tuple[int | None, ...]:
    """Without layer_types, the layers from max_window_layers on have the window, where one is in use."""
    window = _sliding_window(fields) if fields.flag("use_sliding_window", False) else None
    first = fields.get("max_window_layers")
    first = _DEFAULT_FIRST_WINDOW_LAYER if first is None else first
    if type(first) is not int or first < 0:
        fields.fail("max_window_layers", f"must be a number of layers, not {first!r}")
    default = [_FULL if window is None or index < first else _SLIDING for index in range(num_layers)]
    kinds = _layer_types(fields, default)
    if window is None and _SLIDING in kinds:
        fields.fail("layer_types", "has sliding attention, but no sliding_window is in use")
    return tuple(window if kind == _SLIDING else None for kind in kinds)


def _layer_types(fields: Fields, default: list[str]) -> list[str]:
    kinds = fields.get("layer_types")
    if kinds is None:
        return default
    if not isinstance(kinds, list) or any(kind not in (_FULL, _SLIDING) for kind in kinds):
        fields.fail("layer_types", f"must be a list of {_FULL!r} and {_SLIDING!r}, not {kinds!r}")
    if len(kinds) != len(default):
        fields.fail("layer_types", f"has {len(kinds)} entries for {len(default)} layers")
    return kinds
