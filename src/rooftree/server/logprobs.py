"""Log-probabilities in the two shapes that the OpenAI API gives them."""

from __future__ import annotations

from collections.abc import Sequence

from rooftree.engine.outputs import Logprob, PositionLogprobs
from rooftree.server.protocol import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob

# The API has no minus infinity; vLLM's floor, so that clients find the number they know.
LOWEST = -9999.0


def chat_logprobs(positions: Sequence[PositionLogprobs]) -> ChatLogprobs:
    """The shape of chat completions."""
    return ChatLogprobs([_chat_position(position) for position in positions])


def _chat_position(position: PositionLogprobs) -> TokenLogprob:
    top = [TopLogprob(p.token, _finite(p.logprob), list(p.bytes)) for p in position.top]
    chosen = position.chosen
    return TokenLogprob(chosen.token, _finite(chosen.logprob), list(chosen.bytes), top)


class TextOffsets:
    """Where each token of one choice begins in the text, in characters. Tokens come in order."""

    def __init__(self) -> None:
        self._characters_begun = 0

    def add(self, token: bytes) -> int:
        """The offset of the next token. One that begins inside a character has that character's offset."""
        inside = token[:1] and _continues(token[0]) and self._characters_begun
        offset = self._characters_begun - 1 if inside else self._characters_begun
        self._characters_begun += sum(not _continues(byte) for byte in token)
        return offset


def completion_logprobs(positions: Sequence[PositionLogprobs], offsets: TextOffsets) -> CompletionLogprobs:
    """The shape of plain completions; the top ones include the chosen token, as that API promises."""
    return CompletionLogprobs(
        text_offset=[offsets.add(position.chosen.bytes) for position in positions],
        token_logprobs=[_finite(position.chosen.logprob) for position in positions],
        tokens=[_spelling(position.chosen) for position in positions],
        top_logprobs=[
            {_spelling(p): _finite(p.logprob) for p in (*position.top, position.chosen)}
            for position in positions
        ],
    )


def _spelling(logprob: Logprob) -> str:
    """A token's text, its bytes where they are not text, its name or id where it has none.

    So no two tokens share a key of ``top_logprobs``.
    """
    if not logprob.bytes:
        return logprob.token or f"token_id:{logprob.token_id}"
    try:
        return logprob.bytes.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in logprob.bytes)


def _finite(value: float) -> float:
    return max(value, LOWEST)


def _continues(byte: int) -> bool:
    """Whether a byte continues a UTF-8 character begun before it."""
    return byte & 0xC0 == 0x80
