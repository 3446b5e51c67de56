"""Log-probabilities with the text and the exact bytes of their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rooftree.engine.messages import TopLogprobs
from rooftree.engine.outputs import Logprob, PositionLogprobs

if TYPE_CHECKING:
    from rooftree.text.tokenizer import Tokenizer


class LogprobsReader:
    """Puts names to the numbers of the core.

    The bytes of the chosen tokens, joined, decode to the text that they made. So a special token, which makes
    no text, has a name but no bytes.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def read(self, token_ids: Sequence[int], logprobs: Sequence[TopLogprobs]) -> list[PositionLogprobs]:
        """One entry for each token of ``token_ids``; ``logprobs`` may hold more."""
        return [
            PositionLogprobs(
                self._entry(token, position.logprob, position.rank),
                [
                    self._entry(other, logprob)
                    for other, logprob in zip(position.top_ids, position.top_logprobs, strict=True)
                ],
            )
            for token, position in zip(token_ids, logprobs, strict=False)
        ]

    def _entry(self, token_id: int, logprob: float, rank: int | None = None) -> Logprob:
        data = self._tokenizer.token_bytes(token_id)
        name = data.decode(errors="replace")
        if self._tokenizer.is_special(token_id):
            data = b""
        return Logprob(token_id, name, data, logprob, rank)
