"""Text to token ids and back, for one model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from rooftree.checkpoint.base import TextAssets
from rooftree.errors import ModelError, RequestError
from rooftree.text.backend import Backend
from rooftree.text.detokenizer import IncrementalDetokenizer
from rooftree.text.gguf_vocab import rebuild_gguf
from rooftree.text.hf_backend import load_hf
from rooftree.text.length_bound import LengthBound, length_bound
from rooftree.text.pieces import rules_of_decoder


class Tokenizer:
    """A model's tokenizer, from tokenizer.json or rebuilt from a GGUF vocabulary.

    Ids run from 0 to ``vocab_size - 1``. A model often has more rows in its embedding than its tokenizer has
    tokens; the ids between are padding: they have no text.

    Attributes:
        vocab_size: the model's number of ids.
        bos_token_id: beginning-of-sequence, or None where the model has none.
        eos_token_ids: the ids that end an answer, as the checkpoint gives them.
        template_variables: ``bos_token``, ``eos_token`` and their like, as chat templates use them.
        piece_rules: how tokens become bytes.
    """

    def __init__(self, backend: Backend, vocab_size: int, eos_token_ids: tuple[int, ...] = ()) -> None:
        state = None if backend.tokenizer.decoder is None else backend.tokenizer.decoder.__getstate__()
        self.vocab_size = vocab_size
        self.bos_token_id = backend.bos_token_id
        self.eos_token_ids = eos_token_ids
        self.template_variables: Mapping[str, str] = backend.template_variables
        self.piece_rules = rules_of_decoder(state)
        self._tokenizer = backend.tokenizer
        self._prefix_ids = list(backend.prefix_ids)
        self._silent_ids = backend.silent_ids
        self._special_ids = frozenset(self.special_token_ids.values())
        self._bytes: list[bytes | None] = [None] * vocab_size

    @classmethod
    def from_assets(cls, assets: TextAssets, vocab_size: int | None = None) -> Tokenizer:
        """Build the tokenizer of a checkpoint.

        Args:
            vocab_size: rows of the model's embedding; None: as many ids as the tokenizer itself has.

        Raises:
            ModelError: the files are damaged or of a kind that is not supported.
        """
        if assets.tokenizer_json is not None:
            backend = load_hf(assets)
        elif assets.gguf_vocab is not None:
            backend = rebuild_gguf(assets.gguf_vocab, assets.bos_token_id)
        else:
            raise ModelError(
                "the model has no tokenizer: neither tokenizer.json nor a GGUF vocabulary was found"
            )
        if vocab_size is None:
            vocab_size = max(backend.tokenizer.get_vocab().values(), default=-1) + 1
        return cls(backend, vocab_size, assets.eos_token_ids)

    @cached_property
    def special_token_ids(self) -> Mapping[str, int]:
        """Every special token's text with its id."""
        added = self._tokenizer.get_added_tokens_decoder()
        return {token.content: token_id for token_id, token in added.items() if token.special}

    def encode(self, text: str, *, add_special_tokens: bool, param: str = "prompt") -> list[int]:
        """Turn a text into ids. Special tokens spelled out in the text become those tokens.

        Args:
            add_special_tokens: True for a raw prompt: what the tokenizer puts before a text (beginning of
                sequence, where it adds one) is put there, even if the text begins with it. False for a
                rendered chat template, which says itself what it wants. End of sequence is never appended,
                even where the tokenizer would: an answer is to follow.
            param: name of the request's field, for the refusal.

        Raises:
            RequestError: the text is not valid Unicode, or has tokens for which the model has no embedding.
        """
        try:
            # Unlike ``encode``, this one lets other threads run meanwhile.
            ids = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except Exception as error:
            raise RequestError(_why_not_encoded(text, error), param=param) from error
        if ids and max(ids) >= self.vocab_size:
            token_id = max(ids)
            raise RequestError(
                f"the text contains the token {self.id_to_token(token_id)!r} (id {token_id}), but the model "
                f"knows only ids below {self.vocab_size}",
                param=param,
            )
        return self._prefix_ids + ids if add_special_tokens else ids

    @cached_property
    def length_bound(self) -> LengthBound | None:
        """How many tokens texts have at least; None where that can not be told without tokenizing them."""
        return length_bound(self._tokenizer)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Turn ids into text: exactly what a stream of the same ids shows, joined.

        Raises:
            RequestError: an id that the model does not have.
        """
        self.check_ids(ids, param="tokens")
        stream = IncrementalDetokenizer(self, skip_special_tokens=skip_special_tokens)
        pieces = [stream.push(token_id) for token_id in ids]
        return "".join(pieces) + stream.flush()

    def check_ids(self, ids: Iterable[int], *, param: str = "prompt") -> None:
        """Refuse ids that the model does not have.

        Raises:
            RequestError: an id is negative or not below ``vocab_size``.
        """
        for token_id in ids:
            if not 0 <= token_id < self.vocab_size:
                raise RequestError(
                    f"token id {token_id} does not exist; ids run from 0 to {self.vocab_size - 1}",
                    param=param,
                )

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds to a text, special tokens their own spelling; empty for padding.

        Raises:
            IndexError: the id is negative or not below ``vocab_size``.
        """
        if token_id < 0:
            raise IndexError(f"token id {token_id} is negative")
        known = self._bytes[token_id]
        if known is None:
            known = self._bytes[token_id] = self._piece(token_id, first=False)
        return known

    def first_token_bytes(self, token_id: int) -> bytes:
        """The bytes of a token that begins a text, where some decoders drop a space's stand-in."""
        return self._piece(token_id, first=True)

    def id_to_token(self, token_id: int) -> str:
        """A token as the vocabulary spells it (``Ġthe``, ``▁the``, ``<0x0A>``); empty for padding."""
        return "" if token_id in self._silent_ids else self._tokenizer.id_to_token(token_id) or ""

    def is_special(self, token_id: int) -> bool:
        """Whether a token is special: a mark for the model, not text."""
        return token_id in self._special_ids

    def is_padding(self, token_id: int) -> bool:
        """Whether an id stands for no token."""
        return not self.id_to_token(token_id)

    def _piece(self, token_id: int, *, first: bool) -> bytes:
        token = self.id_to_token(token_id)
        return self.piece_rules.piece(token, first=first) if token else b""


def _why_not_encoded(text: str, error: Exception) -> str:
    for index, character in enumerate(text):
        if 0xD800 <= ord(character) <= 0xDFFF:
            return (
                f"the text is not valid Unicode: character {index} is U+{ord(character):04X}, half of a "
                "surrogate pair; send whole characters"
            )
    return f"the tokenizer cannot encode this text: {error}"
