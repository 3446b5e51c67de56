"""Rotary embedding of a config.json, in every spelling in use, as a RopeSpec.

``rope_scaling`` with ``type`` or ``rope_type`` beside a top-level ``rope_theta`` is the older form;
``rope_parameters``, which holds the base as well, the one that transformers 5 writes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rooftree.checkpoint.fields import Fields
from rooftree.specs.model import RopeSpec

SUPPORTED = ("default", "linear", "llama3", "yarn")


def rope_spec(config: Fields, max_position: int) -> RopeSpec:
    """The RopeSpec of a config, with the defaults of transformers' ``modeling_rope_utils``."""
    name, values = _entry(config)
    fields = Fields(values, config.source, within=f"{name}.")
    theta = fields.number("rope_theta", config.number("rope_theta", 10_000.0))
    _refuse_partial(config, fields)
    kind = fields.text("rope_type", fields.text("type", "default"))
    if kind == "default":
        return RopeSpec(theta=theta)
    if kind == "linear":
        return RopeSpec(theta=theta, kind="linear", factor=fields.number("factor"))
    if kind == "llama3":
        return _llama3(config, fields, theta, max_position)
    if kind == "yarn":
        return _yarn(config, fields, theta, max_position)
    return fields.fail("rope_type", f"{kind!r} is not supported; supported are {', '.join(SUPPORTED)}")


def yarn_attention_factor(factor: float, mscale: float = 0.0, mscale_all_dim: float = 0.0) -> float:
    """What cos and sin are multiplied by: 0.1 ln(factor) + 1 (Peng et al., 2023), or a ratio of two such."""

    def gain(multiplier: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * multiplier * math.log(factor) + 1.0

    return gain(mscale) / gain(mscale_all_dim) if mscale and mscale_all_dim else gain(1.0)


def _entry(config: Fields) -> tuple[str, Mapping[str, Any]]:
    """The scaling dictionary and its name; an empty one where nothing is scaled."""
    for name in ("rope_scaling", "rope_parameters"):
        values = config.get(name)
        if not values:
            continue
        if not isinstance(values, Mapping):
            config.fail(name, f"must be an object, not {values!r}")
        nested = [key for key, value in values.items() if isinstance(value, Mapping)]
        if nested:
            config.fail(
                name, f"with a different rotation by layer type ({', '.join(nested)}) is not supported"
            )
        return name, values
    return "rope_scaling", {}


def _refuse_partial(config: Fields, fields: Fields) -> None:
    for holder in (fields, config):
        share = holder.number("partial_rotary_factor", 1.0)
        if share != 1.0:
            holder.fail("partial_rotary_factor", f"is {share}; only whole heads can be rotated")


def _original_max_position(config: Fields, fields: Fields, max_position: int) -> int:
    """A value beside the scaling dictionary comes before one inside it."""
    inside = fields.count("original_max_position_embeddings", max_position)
    return config.count("original_max_position_embeddings", inside)


def _llama3(config: Fields, fields: Fields, theta: float, max_position: int) -> RopeSpec:
    low, high = fields.number("low_freq_factor"), fields.number("high_freq_factor")
    if high <= low:
        fields.fail("high_freq_factor", f"is {high}; it must be more than low_freq_factor, {low}")
    return RopeSpec(
        theta=theta,
        kind="llama3",
        factor=fields.number("factor"),
        original_max_position=_original_max_position(config, fields, max_position),
        low_freq_factor=low,
        high_freq_factor=high,
    )


def _yarn(config: Fields, fields: Fields, theta: float, max_position: int) -> RopeSpec:
    if not fields.flag("truncate", True):
        fields.fail("truncate", "false is not supported: the ramp's ends are whole dimensions")
    if theta <= 1:
        fields.fail("rope_theta", f"is {theta}; yarn needs more than 1")
    original = _original_max_position(config, fields, max_position)
    known = fields.get("original_max_position_embeddings") or config.get("original_max_position_embeddings")
    # transformers derives a factor of null from the two lengths, which says something only if both are given.
    factor = fields.number("factor", max_position / original if known else None)
    mscales = [fields.number(name, 0.0) if fields.get(name) else 0.0 for name in ("mscale", "mscale_all_dim")]
    beta_fast, beta_slow = (
        fields.number(name, default) if fields.get(name) else default
        for name, default in (("beta_fast", 32.0), ("beta_slow", 1.0))
    )
    if beta_fast < beta_slow:
        fields.fail("beta_fast", f"is {beta_fast}; it must be no less than beta_slow, {beta_slow}")
    return RopeSpec(
        theta=theta,
        kind="yarn",
        factor=factor,
        original_max_position=original,
        beta_fast=beta_fast,
        beta_slow=beta_slow,
        attention_factor=fields.number("attention_factor", yarn_attention_factor(factor, *mscales)),
    )
