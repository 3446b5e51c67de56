"""What a step computes: new tokens over contexts, summed up as far as the cost model needs it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class RequestTokens:
    """``count`` requests, each computing ``new`` tokens after ``context`` tokens computed before.

    ``outputs``: rows of logits that each needs: 1, or 0 where a prompt goes on in the next step.
    """

    new: int
    context: int = 0
    count: int = 1
    outputs: int = 1


@dataclass(frozen=True, slots=True)
class Window:
    """What a query sees: the last ``size`` tokens, those of its chunk of ``size`` tokens, or all (None)."""

    size: int | None = None
    kind: Literal["sliding", "chunked"] = "sliding"

    def pairs_up_to(self, tokens: int) -> int:
        """Query-key pairs of the first ``tokens`` tokens of a sequence."""
        if self.size is None or tokens <= self.size:
            return tokens * (tokens + 1) // 2
        whole = self.size * (self.size + 1) // 2
        if self.kind == "sliding":
            return whole + (tokens - self.size) * self.size
        rest = tokens % self.size
        return tokens // self.size * whole + rest * (rest + 1) // 2

    def pairs(self, new: int, context: int) -> int:
        """Query-key pairs of ``new`` tokens after ``context`` others."""
        return self.pairs_up_to(context + new) - self.pairs_up_to(context)

    def reads(self, new: int, context: int) -> int:
        """Tokens whose K and V those queries need, each counted once."""
        if self.size is None:
            return context + new
        before = context % self.size if self.kind == "chunked" else min(context, self.size - 1)
        return before + new


@dataclass(frozen=True, slots=True)
class Span:
    """Attention of a step under one window.

    Attributes:
        decode: tokens read by requests that compute one token: as many query-key pairs.
        prefill_pairs, prefill_reads: query-key pairs, and tokens read, of requests that compute more.
    """

    decode: float = 0.0
    prefill_pairs: float = 0.0
    prefill_reads: float = 0.0


@dataclass(frozen=True, slots=True)
class Batch:
    """A step. ``spans`` are parallel to the model's windows (``ModelCosts.windows``).

    Attributes:
        tokens: new tokens; outputs: rows of logits; sequences: requests.
    """

    tokens: float
    outputs: float
    sequences: float
    spans: tuple[Span, ...]


def batch_of(requests: Iterable[RequestTokens], windows: Sequence[Window]) -> Batch:
    """The exact sums of any mixture of prefill and decode."""
    tokens = outputs = sequences = 0
    sums = [[0, 0, 0] for _ in windows]
    for request in requests:
        count = request.count
        tokens += request.new * count
        outputs += request.outputs * count
        sequences += count
        for total, window in zip(sums, windows, strict=True):
            if request.new == 1:
                total[0] += window.pairs(1, request.context) * count
            else:
                total[1] += window.pairs(request.new, request.context) * count
                total[2] += window.reads(request.new, request.context) * count
    return Batch(tokens, outputs, sequences, tuple(Span(*total) for total in sums))
