"""A tokenizer of the ``tokenizers`` library with what its files say besides, whatever those files were."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import tokenizers


@dataclass(frozen=True, slots=True, eq=False)
class Backend:
    """What ``hf_backend`` and ``gguf_vocab`` build.

    Attributes:
        tokenizer: the library's tokenizer, with its decoder; truncation and padding off.
        prefix_ids: the special tokens that it puts before a text, normally beginning-of-sequence or nothing.
        template_variables: names such as ``bos_token`` with their texts, as chat templates use them.
        bos_token_id: beginning-of-sequence, if there is one.
        silent_ids: ids that are in the vocabulary but stand for no text (unused places).
    """

    tokenizer: tokenizers.Tokenizer
    prefix_ids: tuple[int, ...] = ()
    template_variables: Mapping[str, str] = field(default_factory=dict)
    bos_token_id: int | None = None
    silent_ids: frozenset[int] = frozenset()
