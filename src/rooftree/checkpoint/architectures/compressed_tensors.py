"""The compressed-tensors quantisation_config: groups of modules with a scheme each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rooftree.checkpoint.architectures.module_patterns import by_name, patterns
from rooftree.checkpoint.architectures.values import block_shape
from rooftree.checkpoint.fields import Fields
from rooftree.specs.weight_format import FORMATS, WeightFormat, grouped
from rooftree.specs.weight_scheme import WeightScheme

_SCALE_BYTES = 4
# The int64 shape that is kept beside a packed weight.
_SHAPE_BYTES = 16
_ALL = "Linear"


def compressed_tensors(fields: Fields, rest: WeightFormat) -> WeightScheme:
    """One scheme for all linear modules, others for those that a group names.

    Raises:
        ModelError: a group is not an object, or its numbers are not known.
    """
    groups = fields.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        fields.fail("config_groups", f"must be an object with at least one group, not {groups!r}")
    linear = rest
    overrides: list[tuple[str, WeightFormat]] = []
    for name, group in groups.items():
        if not isinstance(group, Mapping):
            fields.fail("config_groups", f"must hold objects, and {name} is {group!r}")
        inner = Fields(group, fields.source, within=f"{fields.within}config_groups.{name}.")
        stored = _format(inner, packing=group.get("format") or fields.get("format"))
        targets = group.get("targets") or [_ALL]
        if _ALL in targets:
            linear = stored
        named = patterns(
            Fields({"targets": [t for t in targets if t != _ALL]}, fields.source), ("targets",), by_name
        )
        overrides.extend((target, stored) for target in named)
    name = next(found.name for found in (linear, *(stored for _, stored in overrides)) if found is not rest)
    return WeightScheme(
        name, linear, rest, ignore=patterns(fields, ("ignore",), by_name), overrides=tuple(overrides)
    )


def _format(fields: Fields, packing: object) -> WeightFormat:
    """The format of one group."""
    weights, activations = _part(fields, "weights"), fields.get("input_activations")
    if weights is None:
        fields.fail("weights", "is missing; it must say how weights are stored")
    bits, kind = weights.count("num_bits"), weights.text("type", "int")
    if (kind, bits) == ("float", 4):
        return _float4(weights, activations)
    if kind == "int" and bits <= 8 and (packing == "pack-quantized" or not activations):
        return _packed(weights, bits)
    if bits != 8 or kind not in ("int", "float"):
        weights.fail(
            "num_bits", f"{bits} of type {kind!r} is not known; known are int up to 8, float of 4 or 8"
        )
    stored = WeightFormat(f"{'fp' if kind == 'float' else 'int'}8", 8, "fp8" if kind == "float" else "int8")
    if not activations:
        stored = replace(stored, arithmetic="bf16")
    static = isinstance(activations, Mapping) and activations.get("dynamic") is False
    return _with_scales(weights, replace(stored, tensor_bytes=_SCALE_BYTES * static))


def _packed(weights: Fields, bits: int) -> WeightFormat:
    """Weight-only integers; zeros where not symmetric, an index per column where reordered by group."""
    group = weights.count("group_size") if weights.get("strategy") == "group" else 0
    return grouped(
        f"int{bits}-g{group or 'row'}",
        bits,
        group,
        zeros=not weights.flag("symmetric", True),
        column_bytes=4 if weights.get("actorder") in ("group", True) else 0,
        tensor_bytes=_SHAPE_BYTES,
    )


def _with_scales(weights: Fields, stored: WeightFormat) -> WeightFormat:
    """The same with the scales of the strategy."""
    strategy = weights.text("strategy")
    stored = replace(stored, name=f"{stored.name}-{strategy}")
    if strategy == "tensor":
        return replace(stored, tensor_bytes=stored.tensor_bytes + _SCALE_BYTES)
    if strategy == "channel":
        return replace(stored, block=(1, 0), block_bits=16)
    if strategy == "group":
        return replace(stored, block=(1, weights.count("group_size")), block_bits=16)
    if strategy == "block":
        return replace(stored, block=block_shape(weights, "block_structure"), block_bits=16)
    return weights.fail("strategy", f"is {strategy!r}; known are tensor, channel, group, block")


def _float4(weights: Fields, activations: Any) -> WeightFormat:
    group = weights.count("group_size")
    names = {16: "nvfp4", 32: "mxfp4"}
    if group not in names:
        weights.fail("group_size", f"is {group}; 4-bit floats have 16 (NVFP4) or 32 (MXFP4)")
    stored = FORMATS[names[group]]
    if activations:
        return replace(stored, arithmetic="fp4")
    # Without activations there is no scale of the input.
    return replace(stored, arithmetic="bf16", tensor_bytes=stored.tensor_bytes // 2)


def _part(fields: Fields, name: str) -> Fields | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, Mapping):
        fields.fail(name, f"must be an object, not {value!r}")
    return Fields(value, fields.source, within=f"{fields.within}{name}.")
