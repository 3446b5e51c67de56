"""config.json of any known family as an Architecture.

Key names, and the meaning of a key that is left out, are those of the published configs and of the model
classes in ``transformers``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from rooftree.checkpoint.architectures.classics import CLASSICS
from rooftree.checkpoint.architectures.decoders import DECODERS
from rooftree.checkpoint.architectures.family import Family, build
from rooftree.checkpoint.architectures.generic import is_llama_like, llama_like, strange_keys
from rooftree.checkpoint.architectures.hybrids import HYBRIDS
from rooftree.checkpoint.architectures.quantization import weight_scheme
from rooftree.checkpoint.fields import Fields
from rooftree.checkpoint.json_file import read_json
from rooftree.errors import ModelError
from rooftree.specs.architecture import Architecture

FAMILIES: dict[str, Family] = DECODERS | CLASSICS | HYBRIDS

# model_types of other wrappers and older revisions of the same networks.
_SAME: dict[str, str] = {
    "refinedweb": "falcon",
    "refinedwebmodel": "falcon",
    "llama4": "llama4_text",
    "gemma3": "gemma3_text",
    "qwen2_vl": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
    "qwen2_5_vl_text": "qwen2",
    "qwen2_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "minimax_text_01": "minimax",
    "minimax_m1": "minimax",
}

CONFIG = "config.json"
# Where older ModelOpt checkpoints keep their quantisation, beside config.json.
MODELOPT = "hf_quant_config.json"
_NESTED = ("text_config", "llm_config", "language_config")
_TOWERS = ("vision", "audio")

# Class names, for configs without a model_type that is known.
_CLASSES: dict[str, str] = {
    "LlamaForCausalLM": "llama",
    "Llama4ForCausalLM": "llama4_text",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Qwen3NextForCausalLM": "qwen3_next",
    "GemmaForCausalLM": "gemma",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "Phi3ForCausalLM": "phi3",
    "PhiMoEForCausalLM": "phimoe",
    "FalconForCausalLM": "falcon",
    "RWForCausalLM": "falcon",
    "GPTNeoXForCausalLM": "gpt_neox",
    "OPTForCausalLM": "opt",
    "BloomForCausalLM": "bloom",
    "SmolLM3ForCausalLM": "smollm3",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "GptOssForCausalLM": "gpt_oss",
    "Glm4ForCausalLM": "glm4",
    "Glm4MoeForCausalLM": "glm4_moe",
    "GraniteForCausalLM": "granite",
    "GraniteMoeForCausalLM": "granitemoe",
    "GraniteMoeSharedForCausalLM": "granitemoeshared",
    "GraniteMoeHybridForCausalLM": "granitemoehybrid",
    "MiniMaxText01ForCausalLM": "minimax",
    "MiniMaxM1ForCausalLM": "minimax",
    "MiniMaxForCausalLM": "minimax",
    "MiniMaxM2ForCausalLM": "minimax_m2",
    "JambaForCausalLM": "jamba",
    "BambaForCausalLM": "bamba",
    "MambaForCausalLM": "mamba",
    "FalconMambaForCausalLM": "falcon_mamba",
    "Mamba2ForCausalLM": "mamba2",
    "NemotronForCausalLM": "nemotron",
    "NemotronHForCausalLM": "nemotron_h",
}

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "bf16": "bf16", "fp16": "fp16"}
_DTYPES |= {"fp32": "fp32", "half": "fp16", "float": "fp32"}
_RECURRENT_DTYPE_FIELDS = ("mamba_ssm_cache_dtype", "mamba_ssm_dtype")


class _Named(NamedTuple):
    """A family, the name it was found by, and what to say about it."""

    name: str
    family: Family
    notes: tuple[str, ...]


def read_architecture(path: Path) -> Architecture:
    """The Architecture of a config.json, or of a directory that holds one.

    Raises:
        ModelError: see ``parse_architecture``; or there is no such file, or it is not JSON.
    """
    file = path / CONFIG if path.is_dir() else path
    document = read_json(file)
    beside = file.with_name(MODELOPT)
    if "quantization_config" not in document and file.name == CONFIG and beside.exists():
        document["quantization_config"] = read_json(beside).get("quantization")
    return parse_architecture(document, str(file))


def parse_architecture(document: object, source: str) -> Architecture:
    """The Architecture that a config.json describes.

    The language model of a config with a ``text_config`` is read from there; other towers are not counted,
    and an unknown name with the usual keys is read as a Llama-like decoder; notes say so.

    Args:
        document: the parsed JSON.
        source: file, for messages.

    Raises:
        ModelError: a name or quantisation that is not known, or a field that is missing or impossible. The
            message names ``source`` and the field.
    """
    if not isinstance(document, Mapping):
        raise ModelError(f"{source}: must be a JSON object")
    named = _family(Fields(_language_model(document), source))
    fields, left_out = _under_usual_names(Fields(_language_model(document), source), named.family)
    dtype, unstated = _dtype(fields)
    architecture = build(
        named.family,
        fields,
        name=named.name,
        dtype=dtype,
        recurrent_dtype=_recurrent_dtype(fields),
        scheme=weight_scheme(fields, dtype),
    )
    notes = (*named.notes, *left_out, *unstated, *_towers(document), *architecture.notes)
    return replace(architecture, notes=notes)


def _language_model(document: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that describe the language model: those of text_config before those around it."""
    nested: Mapping[str, Any] = next((v for v in map(document.get, _NESTED) if isinstance(v, Mapping)), {})
    inner = {key: value for key, value in nested.items() if value is not None or document.get(key) is None}
    values = {**document, **inner}
    if inner.get("model_type") is not None and inner.get("architectures") is None:
        values.pop("architectures", None)
    return values


def _towers(document: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"not counted: the {what} tower" for what in _TOWERS if f"{what}_config" in document)


def _family(fields: Fields) -> _Named:
    model_type = fields.get("model_type")
    listed = fields.get("architectures")
    names = listed if isinstance(listed, list) else []
    if isinstance(model_type, str):
        known = _SAME.get(model_type.lower(), model_type.lower())
        if known in FAMILIES:
            return _Named(str(names[0]) if names else model_type, FAMILIES[known], ())
    for name in names:
        if name in _CLASSES:
            return _Named(name, FAMILIES[_CLASSES[name]], ())
    return _unknown(fields, model_type, names)


def _unknown(fields: Fields, model_type: object, names: list[Any]) -> _Named:
    name = str(names[0]) if names else model_type if isinstance(model_type, str) else None
    if is_llama_like(fields):
        what = f"{name} is not a known architecture" if name else "the config names no architecture"
        note = f"{what}: counted as a Llama-like decoder from its keys; figures may be off"
        return _Named(name or "unnamed", llama_like(fields), (note,))
    if name is None:
        fields.fail("model_type", "is missing; it must name the architecture")
    strange = strange_keys(fields)
    reason = f" and has {', '.join(strange[:5])}" if strange else ""
    field = "model_type" if model_type is not None else "architectures"
    return fields.fail(field, f"{name!r} is not known{reason}; known are {', '.join(sorted(FAMILIES))}")


def _under_usual_names(fields: Fields, family: Family) -> tuple[Fields, tuple[str, ...]]:
    """The fields with the family's own key names replaced, and its class's dimensions where left out."""
    values = dict(fields.values)
    for usual, own in family.aliases:
        if values.get(usual) is None and values.get(own) is not None:
            values[usual] = values[own]
    for name in family.layers_from:
        if values.get("num_hidden_layers") is None and isinstance(values.get(name), list | str):
            values["num_hidden_layers"] = len(values[name])
    left_out = [name for name, _ in family.defaults if name not in values]
    for name, value in family.defaults:
        values.setdefault(name, value)
    note = f"left out, as the class has them: {', '.join(left_out)}"
    return Fields(values, fields.source), (note,) if left_out else ()


def _dtype(fields: Fields) -> tuple[str, tuple[str, ...]]:
    """Element type of the published weights; 16 bits where a config does not state it."""
    name = "dtype" if fields.get("dtype") is not None else "torch_dtype"
    stated = fields.get(name)
    if stated is None or stated == "auto":
        return "bf16", ("torch_dtype is not stated: unquantised weights counted as bf16",)
    dtype = _DTYPES.get(str(stated).removeprefix("torch."))
    if dtype is None:
        fields.fail(name, f"is {stated!r}; known are {', '.join(_DTYPES)}")
    return dtype, ()


def _recurrent_dtype(fields: Fields) -> str:
    for name in _RECURRENT_DTYPE_FIELDS:
        if fields.get(name) is not None:
            dtype = _DTYPES.get(fields.text(name))
            if dtype is None:
                fields.fail(name, f"is {fields.get(name)!r}; known are {', '.join(_DTYPES)}")
            return dtype
    return "fp32"
