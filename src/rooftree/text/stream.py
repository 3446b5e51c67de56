"""From an answer's tokens to the text a client sees: detokenizer, then stop strings."""

from __future__ import annotations

from collections.abc import Iterable

from rooftree.text.detokenizer import IncrementalDetokenizer
from rooftree.text.stop_matcher import StopMatcher, StopStrings
from rooftree.text.tokenizer import Tokenizer


class TextStream:
    """Text of one answer. All deltas, joined, are the whole text, however the tokens were grouped.

    The token that ends an answer (end-of-sequence, a stop token) is not part of its text: do not push it.

    Args:
        stops: stop strings; the text ends before the first one (``StopMatcher`` says which that is).
        skip_special_tokens, at_start: as for ``IncrementalDetokenizer``.
    """

    __slots__ = ("_detokenizer", "_matcher")

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: StopStrings | None = None,
        *,
        skip_special_tokens: bool = True,
        at_start: bool = True,
    ) -> None:
        self._detokenizer = IncrementalDetokenizer(
            tokenizer, skip_special_tokens=skip_special_tokens, at_start=at_start
        )
        self._matcher = None if stops is None else StopMatcher(stops)

    def push(self, token_ids: Iterable[int], *, may_stop: bool = True) -> tuple[str, str | None]:
        """Take new tokens; gives the new text and the stop string that matched, if one did.

        Args:
            may_stop: False while ``min_tokens`` holds: the text of these tokens is no part of a match.
        """
        text = "".join([self._detokenizer.push(token_id) for token_id in token_ids])
        if self._matcher is None:
            return text, None
        return self._matcher.push(text, may_stop=may_stop)

    def finish(self) -> str:
        """The answer ended: gives all text still held back, and nothing if a stop string matched.

        The same for every reason of ending. A character left incomplete becomes U+FFFD here, which is no part
        of a match. A second call gives nothing.
        """
        tail = self._detokenizer.flush()
        if self._matcher is None:
            return tail
        return self._matcher.push(tail, may_stop=False)[0]
