"""Rotary embedding of a GGUF file as a RopeSpec."""

from __future__ import annotations

from rooftree.checkpoint.fields import Fields
from rooftree.checkpoint.hf_rope import yarn_attention_factor
from rooftree.specs.model import RopeSpec

_SCALING = "rope.scaling."
SUPPORTED = ("none", "linear", "yarn")


def gguf_rope(fields: Fields, max_position: int, freq_factors: tuple[float, ...]) -> RopeSpec:
    """The RopeSpec of the ``rope.*`` keys and of the rope_freqs tensor (empty: there is none).

    As in llama.cpp, a scaling factor without a type means linear. Its yarn multiplies cos and sin by
    ``attn_factor`` times what follows from the factor.
    """
    theta = fields.number("rope.freq_base", 10_000.0)
    factor = _factor(fields)
    kind = fields.text(f"{_SCALING}type", "linear")
    if kind not in SUPPORTED:
        fields.fail(f"{_SCALING}type", f"{kind!r} is not supported; supported are {', '.join(SUPPORTED)}")
    if kind == "none" or (kind == "linear" and factor == 1.0):
        _refuse_attention_factor(fields)
        return RopeSpec(theta=theta, freq_factors=freq_factors)
    if freq_factors:
        fields.fail(f"{_SCALING}type", f"{kind!r} together with the tensor rope_freqs is not supported")
    if kind == "linear":
        _refuse_attention_factor(fields)
        return RopeSpec(theta=theta, kind="linear", factor=factor)
    return _yarn(fields, theta, factor, max_position)


def _factor(fields: Fields) -> float:
    """0 stands for none; ``rope.scale_linear`` is the key that early files use."""
    for name in (f"{_SCALING}factor", "rope.scale_linear"):
        if fields.get(name):
            return fields.number(name)
    return 1.0


def _refuse_attention_factor(fields: Fields) -> None:
    if fields.number(f"{_SCALING}attn_factor", 1.0) != 1.0:
        fields.fail(f"{_SCALING}attn_factor", "is supported with yarn scaling only")


def _yarn(fields: Fields, theta: float, factor: float, max_position: int) -> RopeSpec:
    for name, neutral in (("yarn_ext_factor", 1.0), ("yarn_attn_factor", 1.0)):
        value = fields.get(_SCALING + name)
        if value is not None and value != neutral:
            fields.fail(_SCALING + name, f"is {value}; only {neutral} is supported")
    if theta <= 1:
        fields.fail("rope.freq_base", f"is {theta}; yarn needs more than 1")
    log_multiplier = f"{_SCALING}yarn_log_multiplier"
    damping = fields.number(log_multiplier) if fields.get(log_multiplier) else 0.0
    return RopeSpec(
        theta=theta,
        kind="yarn",
        factor=factor,
        original_max_position=fields.count(f"{_SCALING}original_context_length", max_position),
        beta_fast=fields.number(f"{_SCALING}yarn_beta_fast", 32.0),
        beta_slow=fields.number(f"{_SCALING}yarn_beta_slow", 1.0),
        attention_factor=yarn_attention_factor(factor, 1.0, damping)
        * fields.number(f"{_SCALING}attn_factor", 1.0),
    )
