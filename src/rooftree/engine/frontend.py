"""What a front end needs of a model: its names and text, none of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rooftree.checkpoint.base import Checkpoint
    from rooftree.specs.model import ModelSpec
    from rooftree.text.chat_template import ChatTemplate
    from rooftree.text.tokenizer import Tokenizer

# Shorter texts are tokenized within a millisecond or two: less than an event loop's other work would notice.
INLINE_CHARACTERS = 4_000


@dataclass(frozen=True, slots=True, eq=False)
class Frontend:
    """A model as text goes in and comes out.

    Attributes:
        name: the checkpoint's own name.
        chat_template: None where the model has none.
        generation_defaults: sampling options that the model's files advise; applied by the server alone.
    """

    name: str
    spec: ModelSpec
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    eos_token_ids: tuple[int, ...]
    generation_defaults: Mapping[str, float | int]


def load_frontend(model: str) -> Frontend:
    """Open a model and parse its text assets.

    Raises:
        ModelError: the model cannot be opened, or its tokenizer or template is not supported.
    """
    from rooftree.checkpoint.open import open_checkpoint  # not needed where the checkpoint is open already

    return frontend_of(open_checkpoint(model))


def frontend_of(checkpoint: Checkpoint) -> Frontend:
    """The front end of an open model.

    Raises:
        ModelError: its tokenizer or template is not supported.
    """
    # jinja2 and tokenizers take a while to import, and the engine process never needs them.
    from rooftree.text.chat_template import ChatTemplate
    from rooftree.text.tokenizer import Tokenizer

    assets = checkpoint.text
    tokenizer = Tokenizer.from_assets(assets, checkpoint.spec.vocab_size)
    template = assets.chat_template
    return Frontend(
        name=checkpoint.name,
        spec=checkpoint.spec,
        tokenizer=tokenizer,
        chat_template=None if template is None else ChatTemplate(template, tokenizer.template_variables),
        eos_token_ids=assets.eos_token_ids,
        generation_defaults=assets.generation_defaults,
    )
