"""Tokens to text, one at a time: bytes become characters only once they are complete."""

from __future__ import annotations

from codecs import utf_8_decode
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rooftree.text.tokenizer import Tokenizer


class IncrementalDetokenizer:
    """Decoder state of one stream of tokens.

    The texts of all ``push`` calls and the ``flush`` after them, joined, are the tokens' bytes decoded at
    once as UTF-8 with U+FFFD for each invalid part (``bytes.decode("utf-8", "replace")``). A character cut
    between tokens waits, at most three bytes of it, until its last byte comes.

    Args:
        skip_special_tokens: special tokens contribute nothing; the bytes around them still meet.
        at_start: the first token begins a text, so the spaces that the tokenizer's decoder strips there are
            stripped. False where the tokens continue a text that was decoded before.
    """

    __slots__ = ("_first", "_skip", "_strip_left", "_tail", "_tokenizer")

    def __init__(
        self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True, at_start: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._first = at_start
        self._strip_left = tokenizer.piece_rules.strip_left if at_start else 0
        self._tail = b""

    def push(self, token_id: int) -> str:
        """Take a token; gives the text that is complete now, which may be empty."""
        tokenizer = self._tokenizer
        if self._skip and tokenizer.is_special(token_id):
            return ""
        if self._first:
            self._first = tokenizer.is_padding(token_id)
            data = tokenizer.first_token_bytes(token_id)
        else:
            data = tokenizer.token_bytes(token_id)
        if self._strip_left:
            data = self._strip(data)
        if self._tail:
            data = self._tail + data
        text, used = utf_8_decode(data, "replace", False)
        self._tail = data[used:]
        return text

    def flush(self) -> str:
        """End of the stream: a character that stayed incomplete, as U+FFFD. A second call gives nothing."""
        text = self._tail.decode("utf-8", "replace")
        self._tail = b""
        return text

    def _strip(self, data: bytes) -> bytes:
        strip_byte = self._tokenizer.piece_rules.strip_byte
        while data and self._strip_left:
            if not data.startswith(strip_byte):
                self._strip_left = 0
                break
            data = data[1:]
            self._strip_left -= 1
        return data
