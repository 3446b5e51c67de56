"""Tensors outside the layers."""

from __future__ import annotations

from rooftree.specs.weight import Weight, linear, norm


def embedding(module: str, rows: int, width: int, *, units: int = 1) -> tuple[Weight, ...]:
    """A table of rows to look up."""
    return (Weight(f"{module}.weight", (rows, width), "embedding", kind="embedding", units=units),)


def outside_weights(
    vocab_size: int,
    hidden: int,
    *,
    tied: bool,
    embed_name: str = "model.embed_tokens",
    norm_name: str | None = "model.norm",
    norm_bias: bool = False,
    head_name: str = "lm_head",
    head_bias: bool = False,
    embed_width: int | None = None,
) -> tuple[Weight, ...]:
    """Embedding, final norm, and a head where it is not the embedding.

    ``embed_width``: that of embedding and head where it is not the model's (OPT-350m). ``norm_name`` None:
    there is no final norm.
    """
    width = embed_width or hidden
    head = () if tied else linear(head_name, vocab_size, width, "head", units=vocab_size, bias=head_bias)
    final = () if norm_name is None else norm(norm_name, hidden, bias=norm_bias)
    return (*embedding(embed_name, vocab_size, width, units=vocab_size), *final, *head)
