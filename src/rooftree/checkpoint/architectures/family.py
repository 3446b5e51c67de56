"""What a family of models is made of, and an Architecture from a family and a config."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rooftree.checkpoint.architectures.values import optional_count
from rooftree.checkpoint.fields import Fields
from rooftree.specs.architecture import Architecture, LayerSpec, Mixer
from rooftree.specs.feed_forward import FeedForward
from rooftree.specs.outside import outside_weights
from rooftree.specs.weight import Weight, norm
from rooftree.specs.weight_scheme import WeightScheme

MixerOf = Callable[[int], Mixer | None]
FeedForwardOf = Callable[[int], FeedForward | None]
Norms = Callable[[Fields], tuple[Weight, ...]]


def named_norms(*modules: str, bias: bool = False) -> Norms:
    """Norms of the model's width."""

    def norms(fields: Fields) -> tuple[Weight, ...]:
        hidden = fields.count("hidden_size")
        return tuple(weight for module in modules for weight in norm(module, hidden, bias=bias))

    return norms


def two_norms(fields: Fields) -> tuple[Weight, ...]:
    """The usual two of the Llama line."""
    return named_norms("input_layernorm", "post_attention_layernorm")(fields)


def nothing(fields: Fields) -> tuple[Weight, ...]:
    """No tensors."""
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How a family's config is read: functions of its fields, that give functions of a layer's number.

    Attributes:
        mixers, feed_forwards: of each layer.
        norms: of each layer.
        extra: tensors outside the layers beside embedding, final norm and head.
        tied: whether the head is the embedding where the config does not say.
        layer_prefix, embed_name, norm_name, head_name: as the checkpoints name them.
        norm_bias, head_bias: of the final norm and the head.
        embed_width: field with the width of embedding and head where it is not hidden_size.
        positions: field with the longest context; None: the family has no limit of its own.
        aliases: field -> its name in this family's configs.
        defaults: dimensions that published configs of this family leave out because its class has them.
        layers_from: fields of which the first given has as many entries as there are layers.
        notes: what to tell the user.
    """

    mixers: Callable[[Fields], MixerOf]
    feed_forwards: Callable[[Fields], FeedForwardOf]
    norms: Norms = two_norms
    extra: Norms = nothing
    tied: bool = False
    layer_prefix: str = "model.layers."
    embed_name: str = "model.embed_tokens"
    norm_name: str | Callable[[Fields], str | None] | None = "model.norm"
    norm_bias: bool = False
    head_name: str = "lm_head"
    head_bias: Callable[[Fields], bool] = lambda fields: False
    embed_width: str | None = None
    positions: str | None = "max_position_embeddings"
    aliases: tuple[tuple[str, str], ...] = ()
    defaults: tuple[tuple[str, int], ...] = ()
    layers_from: tuple[str, ...] = ()
    notes: Callable[[Fields], tuple[str, ...]] = lambda fields: ()


def build(
    family: Family, fields: Fields, *, name: str, dtype: str, recurrent_dtype: str, scheme: WeightScheme
) -> Architecture:
    """The Architecture of one config of a family.

    Raises:
        ModelError: a field is missing or impossible; the message names it.
    """
    hidden, vocab_size = fields.count("hidden_size"), fields.count("vocab_size")
    num_layers = fields.layers("num_hidden_layers")
    tied = fields.flag("tie_word_embeddings", family.tied)
    mixer, feed_forward, norms = family.mixers(fields), family.feed_forwards(fields), family.norms(fields)
    positions = optional_count(fields, family.positions) if family.positions else None
    distinct: dict[LayerSpec, LayerSpec] = {}
    layers = []
    for index in range(num_layers):
        layer = LayerSpec(mixer(index), feed_forward(index), norms)
        layers.append(distinct.setdefault(layer, layer))
    outside = outside_weights(
        vocab_size,
        hidden,
        tied=tied,
        embed_name=family.embed_name,
        norm_name=family.norm_name(fields) if callable(family.norm_name) else family.norm_name,
        norm_bias=family.norm_bias,
        head_name=family.head_name,
        head_bias=family.head_bias(fields),
        embed_width=optional_count(fields, family.embed_width) if family.embed_width else None,
    )
    return Architecture(
        name=name,
        vocab_size=vocab_size,
        hidden_size=hidden,
        tied_head=tied,
        layers=tuple(layers),
        outside=(*outside, *family.extra(fields)),
        max_positions=positions,
        dtype=dtype,
        scheme=scheme,
        layer_prefix=family.layer_prefix,
        recurrent_dtype=recurrent_dtype,
        notes=(*family.notes(fields), *_unstated(family, positions)),
    )


def _unstated(family: Family, positions: int | None) -> tuple[str, ...]:
    """No size depends on the longest context, so a config that leaves it out can be counted."""
    if family.positions is None or positions is not None:
        return ()
    return (f"{family.positions} is not stated: the longest context is not known",)
