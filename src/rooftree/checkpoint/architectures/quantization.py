"""quantization_config of a published checkpoint as a WeightScheme: how each method names its numbers.

Scales whose width a config does not state are counted as the method's usual checkpoints store them: 16 bits
per group or channel, fp32 per tensor and per block.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from rooftree.checkpoint.architectures.compressed_tensors import compressed_tensors
from rooftree.checkpoint.architectures.module_patterns import by_glob, by_part, by_substring, patterns
from rooftree.checkpoint.architectures.values import block_shape
from rooftree.checkpoint.fields import Fields
from rooftree.specs.weight_format import FORMATS, WeightFormat, grouped
from rooftree.specs.weight_scheme import WeightScheme, uniform

_SCALE_BYTES = 4
_MIXED = "MIXED_PRECISION"
_EXPERT = re.compile(r"\.experts\.\d+\.")
_LISTS = ("modules_to_not_convert", "ignored_layers")

Reader = Callable[[Fields, WeightFormat], WeightScheme]


def weight_scheme(fields: Fields, dtype: str) -> WeightScheme:
    """How the published weights are stored.

    Args:
        fields: those of config.json.
        dtype: element type of what is not quantised.

    Raises:
        ModelError: the method, or a number of it, is not known; the message names the field.
    """
    name = "compression_config" if fields.get("quantization_config") is None else "quantization_config"
    config = fields.get(name)
    if config is None:
        return uniform(dtype)
    if not isinstance(config, Mapping):
        fields.fail(name, f"must be an object, not {config!r}")
    inner = Fields(config, fields.source, within=f"{name}.")
    method = inner.text("quant_method", "modelopt" if "quant_algo" in config else None).lower()
    if method not in _METHODS:
        inner.fail("quant_method", f"{method!r} is not known; known are {', '.join(_METHODS)}")
    return _METHODS[method](inner, FORMATS[dtype])


def _gptq(fields: Fields, rest: WeightFormat) -> WeightScheme:
    """qweight, scales, qzeros of ``bits`` each, and g_idx (int32 per input column)."""
    if fields.get("dynamic"):
        fields.fail("dynamic", "(settings by module) is not supported")
    bits, group = _bits(fields), _group(fields)
    stored = grouped(f"gptq-int{bits}-g{group or 'row'}", bits, group, zeros=True, column_bytes=4)
    head = stored if fields.flag("lm_head", False) else None
    return WeightScheme(stored.name, stored, rest, head=head, ignore=patterns(fields, _LISTS, by_substring))


def _awq(fields: Fields, rest: WeightFormat) -> WeightScheme:
    bits, group = _bits(fields), _group(fields)
    stored = grouped(f"awq-int{bits}-g{group or 'row'}", bits, group, zeros=fields.flag("zero_point", True))
    return WeightScheme(stored.name, stored, rest, ignore=patterns(fields, _LISTS, by_substring))


def _fp8(fields: Fields, rest: WeightFormat) -> WeightScheme:
    """A scale per block of weight_block_size, or one per tensor (and one per input where static)."""
    if fields.get("weight_block_size") is not None:
        stored = WeightFormat("fp8-block", 8, "fp8", block_shape(fields, "weight_block_size"), 32)
    else:
        static = fields.text("activation_scheme", "dynamic") == "static"
        stored = WeightFormat("fp8", 8, "fp8", tensor_bytes=_SCALE_BYTES * (1 + static))
    return WeightScheme(stored.name, stored, rest, ignore=patterns(fields, _LISTS, by_part))


def _fbgemm_fp8(fields: Fields, rest: WeightFormat) -> WeightScheme:
    """An fp32 scale per output channel."""
    stored = WeightFormat("fp8-channel", 8, "fp8", (1, 0), 32)
    return WeightScheme(stored.name, stored, rest, ignore=patterns(fields, _LISTS, by_part))


def _mxfp4(fields: Fields, rest: WeightFormat) -> WeightScheme:
    """Only experts are packed, whether or not the list names the attention."""
    ignore = (by_substring("self_attn"), *patterns(fields, _LISTS, by_glob))
    return WeightScheme("mxfp4", FORMATS["mxfp4"], rest, ignore=ignore)


def _modelopt(fields: Fields, rest: WeightFormat) -> WeightScheme:
    if fields.text("quant_algo").upper() == _MIXED:
        return _modelopt_mixed(fields, rest)
    stored = _modelopt_format(fields)
    ignore = patterns(fields, ("ignore", "exclude_modules"), by_glob)
    return WeightScheme(stored.name, stored, rest, ignore=ignore)


def _modelopt_mixed(fields: Fields, rest: WeightFormat) -> WeightScheme:
    """quantized_layers names each quantised module; experts of a layer are alike, so one of them counts."""
    modules = fields.get("quantized_layers")
    if not isinstance(modules, Mapping) or not modules:
        fields.fail("quantized_layers", f"must name the modules of {_MIXED}, not {modules!r}")
    exact: dict[str, WeightFormat] = {}
    for module, setting in modules.items():
        if not isinstance(setting, Mapping):
            fields.fail("quantized_layers", f"must hold objects, and {module} is {setting!r}")
        inner = Fields(setting, fields.source, within=f"{fields.within}quantized_layers.{module}.")
        exact[f"{_EXPERT.sub('.experts.{}.', module)}.weight"] = _modelopt_format(inner)
    return WeightScheme("modelopt-mixed", rest, rest, exact=exact)


def _modelopt_format(fields: Fields) -> WeightFormat:
    algorithm = fields.text("quant_algo").upper()
    if algorithm not in _MODELOPT:
        fields.fail("quant_algo", f"{algorithm!r} is not known; known are {', '.join(_MODELOPT)}, {_MIXED}")
    return _MODELOPT[algorithm]


# Both keep an fp32 scale of the input beside that of the weight.
_MODELOPT: dict[str, WeightFormat] = {
    "FP8": WeightFormat("fp8", 8, "fp8", tensor_bytes=2 * _SCALE_BYTES),
    "NVFP4": FORMATS["nvfp4"],
}

_METHODS: dict[str, Reader] = {
    "gptq": _gptq,
    "awq": _awq,
    "fp8": _fp8,
    "fbgemm_fp8": _fbgemm_fp8,
    "mxfp4": _mxfp4,
    "compressed-tensors": compressed_tensors,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
}


def _bits(fields: Fields) -> int:
    name = "w_bit" if fields.get("w_bit") is not None else "bits"
    bits = fields.count(name)
    if bits not in (2, 3, 4, 8):
        fields.fail(name, f"is {bits}; 2, 3, 4 and 8 are possible")
    return bits


def _group(fields: Fields) -> int:
    """Elements of a row that share a scale; -1 in the file means the whole row, 0 here."""
    name = "q_group_size" if fields.get("q_group_size") is not None else "group_size"
    return 0 if fields.get(name) == -1 else fields.count(name)
