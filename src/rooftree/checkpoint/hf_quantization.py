"""How a quantised Hugging Face checkpoint stores its weights, as its configuration announces it.

Read are ``quantization_config`` of config.json and modelopt's hf_quant_config.json, as the libraries that
write them define the fields: compressed-tensors, NVIDIA ModelOpt, and the ``fp8`` and ``mxfp4`` methods of
transformers. Which module is stored how (its ``targets`` and ``ignore`` lists) is left to the tensors, which
show it; what the configuration must tell is that nothing but the formats named here is to be expected. A
scheme, or a setting of one, that is not known is refused by name.

Fields about activations and the KV cache are accepted and not followed: inputs are used as they are, neither
rounded to FP8 or FP4 nor multiplied with a stored scale. Weights are exactly the published ones, so a result
differs from one with quantised activations by the error that quantising those would have added.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rooftree.checkpoint.base import DType
from rooftree.checkpoint.fields import Fields
from rooftree.checkpoint.json_file import read_json

MODELOPT_CONFIG = "hf_quant_config.json"

Block = tuple[int, int]

_DEFAULT_BLOCK: Block = (128, 128)


@dataclass(frozen=True, slots=True)
class QuantizedStorage:
    """What a checkpoint announces.

    Attributes:
        method: the library's name, for messages.
        formats: formats of quantised weights that may be there; the rest is stored in floats.
        fp8_block: rows and columns that share an FP8 scale, where scales come in blocks.
    """

    method: str
    formats: frozenset[DType]
    fp8_block: Block | None = None


def quantized_storage(config: Mapping[str, Any], file: Path) -> QuantizedStorage | None:
    """What a parsed config.json, or the modelopt file beside it, announces; None: nothing is quantised.

    Args:
        file: the path of config.json.

    Raises:
        ModelError: a method, scheme or setting that is not supported; the message names file and field.
    """
    nested = config.get("text_config")
    for name in ("quantization_config", "compression_config"):
        for values in (config, nested if isinstance(nested, Mapping) else {}):
            if values.get(name) is not None:
                return _parse(values[name], str(file), name, None)
    beside = file.with_name(MODELOPT_CONFIG)
    if beside.exists():
        return _parse(read_json(beside).get("quantization"), str(beside), "quantization", "modelopt")
    return None


def _parse(document: Any, source: str, name: str, default_method: str | None) -> QuantizedStorage:
    if not isinstance(document, Mapping):
        Fields({}, source).fail(name, f"must be an object, not {document!r}")
    fields = Fields(document, source, within=f"{name}.")
    method = fields.text("quant_method", default_method).lower()
    if method not in _METHODS:
        fields.fail(
            "quant_method",
            f"{method!r} is not supported; supported are {', '.join(_METHODS)} (or use an unquantised "
            "checkpoint or a GGUF file)",
        )
    return _METHODS[method](fields)


def _refuse_others(fields: Fields, known: Iterable[str]) -> None:
    """A setting that nobody here knows could change what the weights mean."""
    for name, value in fields.values.items():
        if name not in known and value not in (None, {}, [], False):
            fields.fail(name, f"({value!r}) is not a known setting")


# fp8


def _fp8(fields: Fields) -> QuantizedStorage:
    """transformers' FineGrainedFP8Config, also DeepSeek's, Qwen's and AutoFP8's own files.

    Scales multiply, those named weight_scale_inv too.
    """
    for name, possible in (("fmt", "e4m3"), ("expert_dtype", "fp8")):
        if fields.text(name, possible).lower() != possible:
            fields.fail(name, f"{fields.get(name)!r} is not supported; supported is {possible!r}")
    _refuse_others(
        fields,
        (
            *("quant_method", "fmt", "expert_dtype", "weight_block_size", "scale_fmt"),
            *("activation_scheme", "kv_cache_scheme", "kv_cache_dtype"),
            *("modules_to_not_convert", "modules_to_convert", "ignored_layers", "ignore", "dequantize"),
        ),
    )
    block = _block(fields, "weight_block_size") or _DEFAULT_BLOCK
    return QuantizedStorage("fp8", frozenset({"F8_E4M3"}), block)


def _block(fields: Fields, name: str) -> Block | None:
    """[128, 128], or "128x128" as compressed-tensors once wrote it."""
    value = fields.get(name)
    if value is None:
        return None
    sizes = re.findall(r"\d+", value) if isinstance(value, str) else value
    try:
        rows, columns = map(int, sizes)
    except (TypeError, ValueError):
        rows = columns = 0
    if rows < 1 or columns < 1:
        fields.fail(name, f"must be two sizes, not {value!r}")
    return rows, columns


# mxfp4


def _mxfp4(fields: Fields) -> QuantizedStorage:
    """gpt-oss: NAME_blocks and NAME_scales."""
    _refuse_others(fields, ("quant_method", "modules_to_not_convert", "dequantize"))
    return QuantizedStorage("mxfp4", frozenset({"MXFP4"}))


# modelopt

_MODELOPT_FORMATS: dict[str, DType] = {
    "FP8": "F8_E4M3",
    "FP8_PER_CHANNEL_PER_TOKEN": "F8_E4M3",
    "FP8_PB_WO": "F8_E4M3",
    "NVFP4": "NVFP4",
    "W4A16_NVFP4": "NVFP4",
}
_MIXED = "MIXED_PRECISION"


def _modelopt(fields: Fields) -> QuantizedStorage:
    _refuse_others(
        fields,
        (
            *("quant_method", "quant_algo", "group_size", "quantized_layers", "config_groups", "producer"),
            *("kv_cache_quant_algo", "kv_cache_scheme", "exclude_modules", "ignore"),
        ),
    )
    if fields.text("quant_algo").upper() != _MIXED:
        return QuantizedStorage("modelopt", frozenset({_modelopt_format(fields)}), _DEFAULT_BLOCK)
    layers = fields.get("quantized_layers")
    if not isinstance(layers, Mapping) or not all(isinstance(layer, Mapping) for layer in layers.values()):
        fields.fail("quantized_layers", f"must give an object for each layer, not {layers!r}")
    formats = [
        _modelopt_format(Fields(layer, fields.source, within=f"{fields.within}quantized_layers.{name}."))
        for name, layer in layers.items()
    ]
    return QuantizedStorage("modelopt", frozenset(formats), _DEFAULT_BLOCK)


def _modelopt_format(fields: Fields) -> DType:
    algorithm = fields.text("quant_algo").upper()
    if algorithm not in _MODELOPT_FORMATS:
        known = ", ".join((*_MODELOPT_FORMATS, _MIXED))
        fields.fail("quant_algo", f"{algorithm!r} is not supported; supported are {known}")
    stored = _MODELOPT_FORMATS[algorithm]
    if stored == "NVFP4" and fields.get("group_size") not in (None, 16):
        fields.fail("group_size", f"is {fields.get('group_size')!r}; 16 is supported")
    return stored


# compressed-tensors

_COMPRESSED_FORMATS = (
    *("float-quantized", "naive-quantized", "nvfp4-pack-quantized", "mxfp4-pack-quantized"),
    "mixed-precision",
)


def _compressed_tensors(fields: Fields) -> QuantizedStorage:
    """Groups of modules, each with a scheme of its own; all of them must be known."""
    _refuse_others(
        fields,
        (
            *("quant_method", "format", "config_groups", "ignore", "version", "quantization_status"),
            *("kv_cache_scheme", "global_compression_ratio", "sparsity_config"),
        ),
    )
    _check_format(fields)
    _check_sparsity(fields)
    groups = fields.get("config_groups")
    if not isinstance(groups, Mapping):
        fields.fail("config_groups", f"must be an object, not {groups!r}")
    formats: set[DType] = set()
    block: Block | None = None
    for name, group in groups.items():
        within = f"{fields.within}config_groups.{name}"
        if not isinstance(group, Mapping):
            fields.fail(f"config_groups.{name}", f"must be an object, not {group!r}")
        scheme = Fields(group, fields.source, within=f"{within}.")
        _refuse_others(scheme, ("targets", "weights", "input_activations", "output_activations", "format"))
        if scheme.get("format") is not None:
            _check_format(scheme)
        weights = scheme.get("weights")
        if weights is None:
            continue
        if not isinstance(weights, Mapping):
            scheme.fail("weights", f"must be an object, not {weights!r}")
        arguments = Fields(weights, fields.source, within=f"{within}.weights.")
        formats.add(_compressed_weights(arguments))
        group_block = _block(arguments, "block_structure")
        if block is not None and group_block not in (None, block):
            arguments.fail("block_structure", f"differs from that of another group, {list(block)}")
        block = group_block or block
    return QuantizedStorage("compressed-tensors", frozenset(formats), block)


def _check_format(fields: Fields) -> None:
    stored = fields.text("format")
    if stored not in _COMPRESSED_FORMATS:
        fields.fail("format", f"{stored!r} is not supported; supported are {', '.join(_COMPRESSED_FORMATS)}")


def _check_sparsity(fields: Fields) -> None:
    sparsity = fields.get("sparsity_config")
    stored = sparsity.get("format", "dense") if isinstance(sparsity, Mapping) else sparsity
    if stored not in (None, "dense"):
        fields.fail("sparsity_config", f"with the format {stored!r} is not supported")


def _compressed_weights(fields: Fields) -> DType:
    _refuse_others(
        fields,
        (
            *("num_bits", "type", "strategy", "symmetric", "group_size", "block_structure", "dynamic"),
            *("actorder", "scale_dtype", "zp_dtype", "observer", "observer_kwargs"),
        ),
    )
    group = fields.get("group_size")
    default = "tensor" if group is None else "channel" if group == -1 else "group"
    kind = (fields.text("type", "int").lower(), fields.count("num_bits", 8))
    strategy = fields.text("strategy", default).lower()
    if kind == ("float", 8) and strategy in ("tensor", "channel", "block"):
        stored: DType = "F8_E4M3"
    elif (*kind, strategy, group) == ("float", 4, "group", 32):
        stored = "MXFP4"
    elif (*kind, strategy, group) == ("float", 4, "tensor_group", 16):
        stored = "NVFP4"
    else:
        size = f" of {group}" if group is not None else ""
        fields.fail(
            "strategy",
            f"{strategy!r}{size} with {kind[0]} of {kind[1]} bits is not supported; supported are float of 8 "
            "bits by tensor, channel and block, float of 4 bits by group of 32 and by tensor_group of 16",
        )
    for name, wanted in (("symmetric", True), ("dynamic", False)):
        if fields.flag(name, wanted) is not wanted:
            fields.fail(name, f"is {fields.get(name)!r}, which is not supported for weights")
    return stored


_METHODS: dict[str, Callable[[Fields], QuantizedStorage]] = {
    "compressed-tensors": _compressed_tensors,
    "fp8": _fp8,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "modelopt_mixed": _modelopt,
    "mxfp4": _mxfp4,
}
