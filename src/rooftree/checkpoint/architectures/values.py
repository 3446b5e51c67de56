"""Reads of config.json that several families share, each with a complaint that names its field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from rooftree.checkpoint.fields import Fields

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"


class Heads(NamedTuple):
    """The shape of an attention layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


def heads(fields: Fields, default_head_dim: int | None = None) -> Heads:
    """Heads of one attention layer. KV heads left out are as many as heads.

    Args:
        fields: the model's.
        default_head_dim: the family's, where the field is left out. Where it has none, or the field is null:
            hidden_size / num_attention_heads.
    """
    hidden, num_heads = fields.count("hidden_size"), fields.count("num_attention_heads")
    kv_heads = fields.count("num_key_value_heads", num_heads)
    if num_heads % kv_heads:
        fields.fail(
            "num_key_value_heads", f"is {kv_heads}, which does not divide {num_heads} attention heads"
        )
    if fields.get("head_dim") is not None:
        return Heads(num_heads, kv_heads, fields.count("head_dim"))
    if default_head_dim is not None and "head_dim" not in fields.values:
        return Heads(num_heads, kv_heads, default_head_dim)
    if hidden % num_heads:
        fields.fail("num_attention_heads", f"is {num_heads}, which does not divide hidden_size {hidden}")
    return Heads(num_heads, kv_heads, hidden // num_heads)


def whole(fields: Fields, name: str, default: int | None = None) -> int:
    """An integer that may be 0; a default of None makes it required."""
    value = fields.get(name)
    if value is None:
        if default is None:
            fields.fail(name, "is missing; it must be a whole number")
        return default
    if type(value) is not int or not 0 <= value < 2**31:
        fields.fail(name, f"must be a whole number, not {value!r}")
    return value


def stated(fields: Fields, name: str) -> int:
    """A whole number whose absence would leave weights uncounted without a word; an explicit null is 0."""
    is_null = fields.prefix + name in fields.values and fields.get(name) is None
    return whole(fields, name, 0 if is_null else None)


def optional_count(fields: Fields, name: str) -> int | None:
    """A positive integer, or None where it is null or left out."""
    return None if fields.get(name) is None else fields.count(name)


def choice(fields: Fields, name: str, known: tuple[str, ...], default: str) -> str:
    """One of some words."""
    value = fields.text(name, default)
    if value not in known:
        fields.fail(name, f"is {value!r}; known are {', '.join(known)}")
    return value


def per_layer(
    fields: Fields, name: str, known: tuple[Any, ...], default: Callable[[int], Any] | None = None
) -> list[Any]:
    """A list with one of ``known`` per layer; where left out, ``default`` of each layer's index."""
    num_layers = fields.layers("num_hidden_layers")
    values = fields.get(name)
    if values is None:
        if default is None:
            fields.fail(name, "is missing; it must be a list with an entry for each layer")
        return [default(index) for index in range(num_layers)]
    if not isinstance(values, list) or any(value not in known for value in values):
        fields.fail(name, f"must be a list of {', '.join(map(repr, known))}, not {values!r}")
    if len(values) != num_layers:
        fields.fail(name, f"has {len(values)} entries for {num_layers} layers")
    return values


def layer_indices(fields: Fields, name: str) -> frozenset[int]:
    """A list of layer numbers, possibly empty."""
    value = fields.get(name) or []
    num_layers = fields.layers("num_hidden_layers")
    if not isinstance(value, list) or any(type(i) is not int or not 0 <= i < num_layers for i in value):
        fields.fail(name, f"must be a list of layer numbers below {num_layers}, not {value!r}")
    return frozenset(value)


def block_shape(fields: Fields, name: str) -> tuple[int, int]:
    """Rows and columns of a block."""
    value = fields.get(name)
    if not isinstance(value, list) or len(value) != 2 or any(type(n) is not int or n < 1 for n in value):
        fields.fail(name, f"must be two positive integers, not {value!r}")
    return value[0], value[1]
