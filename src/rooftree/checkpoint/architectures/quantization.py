"""quantization_config of a published checkpoint as a WeightScheme: how each method names its numbers.

Scales whose width a config does not state are counted as the method's usual checkpoints store them: 16 bits per
group or channel, fp32 per tensor and per block.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from rooftree.checkpoint.fields import Fields
from rooftree.specs.weight_format import FORMATS, WeightFormat, grouped
from rooftree.specs.weight_scheme import WeightScheme, uniform

# Bytes of the int64 shape that compressed-tensors keeps beside a packed weight.
_SHAPE_BYTES = 16
_SCALE_BYTES = 4


def weight_scheme(fields: Fields, dtype: str) -> WeightScheme:
    """How the published weights are stored.

    Args:
        fields: those of config.json.
        dtype: element type of what is not quantised.

    Raises:
        ModelError: the method, or a number of it, is not known; the message names the field.
    """
    config = fields.get("quantization_config")
    if config is None:
        config = fields.get("compression_config")
    if config is None:
        return uniform(dtype)
    if not isinstance(config, Mapping):
        fields.fail("quantization_config", f"must be an object, not {config!r}")
    inner = Fields(config, fields.source, within="quantization_config.")
    method = inner.text("quant_method", "modelopt" if "quant_algo" in config else None).lower()
    reader = _METHODS.get(method)
    if reader is None:
        inner.fail("quant_method", f"{method!r} is not known; known are {', '.join(_METHODS)}")
    return reader(inner, FORMATS[dtype])


def _gptq(fields: Fields, rest: WeightFormat) -> WeightScheme:
    """qweight, scales, qzeros of ``bits`` each, and g_idx (int32 per input column)."""
    bits, group = _bits(fields), _group(fields)
    stored = grouped(f"gptq-int{bits}-g{group or 'row'}", bits, group, zeros=True, column_bytes=4)
    head = stored if fields.flag("lm_head", False) else None
    dynamic = fields.get("dynamic")
    if dynamic:
        fields.fail("dynamic", "(settings by module) is not supported")
    return WeightScheme(stored.name, stored, rest, head=head, ignore=_ignored(fields, _substring))


def _awq(fields: Fields, rest: WeightFormat) -> WeightScheme:
    bits, group = _bits(fields), _group(fields)
    stored = grouped(f"awq-int{bits}-g{group or 'row'}", bits, group, zeros=fields.flag("zero_point", True))
    return WeightScheme(stored.name, stored, rest, ignore=_ignored(fields, _substring))


def _fp8(fields: Fields, rest: WeightFormat) -> WeightScheme:
    """A scale per block of weight_block_size, or one per tensor (and one per input where static)."""
    block = fields.get("weight_block_size")
    if block is None:
        static = fields.text("activation_scheme", "dynamic") == "static"
        stored = WeightFormat("fp8", 8, "fp8", tensor_bytes=_SCALE_BYTES * (2 if static else 1))
    else:
        if not isinstance(block, list) or len(block) != 2 or any(type(n) is not int or n < 1 for n in block):
            fields.fail("weight_block_size", f"must be two positive integers, not {block!r}")
        stored = WeightFormat("fp8-block", 8, "fp8", (block[0], block[1]), 32)
    return WeightScheme(stored.name, stored, rest, ignore=_ignored(fields, _prefix_or_part))


def _fbgemm_fp8(fields: Fields, rest: WeightFormat) -> WeightScheme:
    stored = WeightFormat("fp8-channel", 8, "fp8", (1, 0), 32)
    return WeightScheme(stored.name, stored, rest, ignore=_ignored(fields, _prefix_or_part))


def _mxfp4(fields: Fields, rest: WeightFormat) -> WeightScheme:
    """Only experts are packed, whether or not the list names the attention."""
    ignore = (_substring("self_attn"), *_ignored(fields, _glob))
    return WeightScheme("mxfp4", FORMATS["mxfp4"], rest, ignore=ignore)


def _compressed_tensors(fields: Fields, rest: WeightFormat) -> WeightScheme:
    """config_groups with one scheme each; a group for all linear modules, others for those they name."""
    groups = fields.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        fields.fail("config_groups", f"must be an object with at least one group, not {groups!r}")
    general: WeightFormat | None = None
    overrides: list[tuple[str, WeightFormat]] = []
    for name, group in groups.items():
        at = f"quantization_config.config_groups.{name}."
        if not isinstance(group, Mapping):
            fields.fail("config_groups", f"must hold objects, and {name} is {group!r}")
        stored = _group_format(Fields(group, fields.source, within=at), fields.get("format"))
        for target in group.get("targets") or ["Linear"]:
            if target == "Linear":
                general = stored
            else:
                overrides.append((_named(str(target)), stored))
    return WeightScheme(
        name=(general or overrides[0][1]).name,
        linear=general or rest,
        rest=rest,
        ignore=_ignored(fields, _named),
        overrides=tuple(overrides),
    )


def _group_format(fields: Fields, outer_format: object) -> WeightFormat:
    weights = fields.get("weights")
    if not isinstance(weights, Mapping):
        fields.fail("weights", f"must be an object, not {weights!r}")
    inner = Fields(weights, fields.source, within=f"{fields.within}weights.")
    bits, kind = inner.count("num_bits"), inner.text("type", "int")
    packing = fields.get("format") or outer_format
    activations = fields.get("input_activations")
    static = isinstance(activations, Mapping) and activations.get("dynamic") is False
    if kind == "float" and bits == 4:
        return _fp4(inner, activations is not None)
    if kind == "float" and bits == 8:
        return _by_strategy(inner, 8, "fp8" if activations else "bf16", static)
    if kind != "int" or bits > 8:
        inner.fail("type", f"{kind!r} of {bits} bits is not known; known are int up to 8, float of 4 or 8")
    if packing == "pack-quantized" or not activations:
        group = inner.count("group_size") if inner.get("strategy") == "group" else 0
        symmetric = inner.flag("symmetric", True)
        columns = 4 if inner.get("actorder") in ("group", True) else 0
        name = f"int{bits}-g{group or 'row'}"
        return grouped(
            name, bits, group, zeros=not symmetric, column_bytes=columns, tensor_bytes=_SHAPE_BYTES
        )
    return _by_strategy(inner, bits, "int8" if bits == 8 else "bf16", static)


def _by_strategy(fields: Fields, bits: int, arithmetic: Any, static: bool) -> WeightFormat:
    strategy = fields.text("strategy")
    extra = _SCALE_BYTES if static else 0
    name = f"{'fp' if arithmetic == 'fp8' else 'int'}{bits}-{strategy}"
    if strategy == "tensor":
        return WeightFormat(name, bits, arithmetic, tensor_bytes=_SCALE_BYTES + extra)
    if strategy == "channel":
        return WeightFormat(name, bits, arithmetic, (1, 0), 16, tensor_bytes=extra)
    if strategy == "group":
        return WeightFormat(name, bits, arithmetic, (1, fields.count("group_size")), 16, tensor_bytes=extra)
    if strategy == "block":
        block = fields.get("block_structure")
        if not isinstance(block, list) or len(block) != 2 or any(type(n) is not int or n < 1 for n in block):
            fields.fail("block_structure", f"must be two positive integers, not {block!r}")
        return WeightFormat(name, bits, arithmetic, (block[0], block[1]), 16, tensor_bytes=extra)
    fields.fail("strategy", f"is {strategy!r}; known are tensor, channel, group, block")


def _fp4(fields: Fields, activations: bool) -> WeightFormat:
    group = fields.count("group_size")
    if group == 16:
        tensor_bytes = _SCALE_BYTES * (2 if activations else 1)
        return WeightFormat(
            "nvfp4", 4, "fp4" if activations else "bf16", (1, 16), 8, tensor_bytes=tensor_bytes
        )
    if group == 32:
        return WeightFormat("mxfp4", 4, "fp4" if activations else "bf16", (1, 32), 8)
    fields.fail("group_size", f"is {group}; 4-bit floats have 16 (NVFP4) or 32 (MXFP4)")


def _modelopt(fields: Fields, rest: WeightFormat) -> WeightScheme:
    algorithm = fields.text("quant_algo").upper()
    stored = _MODELOPT.get(algorithm)
    if stored is None:
        fields.fail("quant_algo", f"{algorithm!r} is not known; known are {', '.join(_MODELOPT)}")
    ignored = _patterns(fields, "ignore", _glob) + _patterns(fields, "exclude_modules", _glob)
    return WeightScheme(stored.name, stored, rest, ignore=ignored)


_MODELOPT: dict[str, WeightFormat] = {
    "FP8": WeightFormat("fp8", 8, "fp8", tensor_bytes=2 * _SCALE_BYTES),
    "NVFP4": FORMATS["nvfp4"],
}

_METHODS: dict[str, Callable[[Fields, WeightFormat], WeightScheme]] = {
    "gptq": _gptq,
    "awq": _awq,
    "fp8": _fp8,
    "fbgemm_fp8": _fbgemm_fp8,
    "mxfp4": _mxfp4,
    "compressed-tensors": _compressed_tensors,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
}


def _bits(fields: Fields) -> int:
    name = "bits" if fields.get("bits") is not None else "w_bit"
    bits = fields.count(name)
    if bits not in (2, 3, 4, 8):
        fields.fail(name, f"is {bits}; 2, 3, 4 and 8 are possible")
    return bits


def _group(fields: Fields) -> int:
    """Elements of a row that share a scale; -1 in the file means the whole row, 0 here."""
    name = "group_size" if fields.get("group_size") is not None else "q_group_size"
    return 0 if fields.get(name) == -1 else fields.count(name)


def _ignored(fields: Fields, pattern: Callable[[str], str]) -> tuple[str, ...]:
    return tuple(
        found
        for name in ("modules_to_not_convert", "ignored_layers", "ignore")
        for found in _patterns(fields, name, pattern)
    )


def _patterns(fields: Fields, name: str, pattern: Callable[[str], str]) -> tuple[str, ...]:
    listed = fields.get(name)
    if listed is None:
        return ()
    if not isinstance(listed, list) or any(not isinstance(entry, str) for entry in listed):
        fields.fail(name, f"must be a list of module names, not {listed!r}")
    patterns = tuple(pattern(entry) for entry in listed)
    for entry, compiled in zip(listed, patterns, strict=True):
        try:
            re.compile(compiled)
        except re.error as error:
            fields.fail(name, f"has {entry!r}, which is not a regular expression ({error})")
    return patterns


def _named(entry: str) -> str:
    """compressed-tensors: a module's full name, or ``re:`` and an expression that matches its beginning."""
    return f"(?:{entry[3:]}).*" if entry.startswith("re:") else re.escape(entry)


def _substring(entry: str) -> str:
    """GPTQ, AWQ: any module whose name contains it."""
    return f".*{re.escape(entry)}.*"


def _prefix_or_part(entry: str) -> str:
    """FP8: a module, and all inside it, by full name or by its last parts."""
    return rf"(?:.*\.)?{re.escape(entry)}(?:\..*)?"


def _glob(entry: str) -> str:
    """modelopt, gpt-oss: ``*`` stands for anything, and what is inside a named module goes with it."""
    anything = re.escape(entry).replace(r"\*", ".*")
    return rf"{anything}(?:\..*)?"
