"""The vocabulary, special tokens and chat template in a GGUF file's metadata."""

from __future__ import annotations

from rooftree.checkpoint.base import TextAssets
from rooftree.checkpoint.fields import Fields
from rooftree.checkpoint.gguf import GgufFile

PREFIX = "tokenizer.ggml."
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def gguf_text(file: GgufFile, vocab_size: int) -> TextAssets:
    """What the text floor needs. Raises ModelError where there is no vocabulary or an id lies outside it."""
    fields = Fields(file.metadata, str(file.path), prefix=PREFIX)
    vocab = {
        key.removeprefix(PREFIX): value for key, value in file.metadata.items() if key.startswith(PREFIX)
    }
    tokens = vocab.get("tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        fields.fail("tokens", "must be the list of the vocabulary's tokens; without it there is no tokenizer")
    fields.text("model")
    ends = (fields.token_id(key, vocab_size) for key in _END_KEYS)
    template = Fields(file.metadata, str(file.path)).text("tokenizer.chat_template", "")
    return TextAssets(
        gguf_vocab=vocab,
        chat_template=template or None,
        bos_token_id=fields.token_id("bos_token_id", vocab_size),
        eos_token_ids=tuple(dict.fromkeys(end for end in ends if end is not None)),
    )
