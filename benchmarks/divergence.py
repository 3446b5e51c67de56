"""How far one next-token distribution lies from another, over the positions of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rooftree.kernels.ops import Floats

Doubles = npt.NDArray[np.float64]

# Rows at a time, so that what is computed stays in the caches.
_ROWS = 16


@dataclass(frozen=True)
class Summary:
    """KL divergences in nats, from the truth to the engine; perplexity of the engine over the text."""

    name: str
    positions: int
    mean_kl: float
    standard_error: float
    median_kl: float
    p99_kl: float
    max_kl: float
    top1_agreement: float
    perplexity: float


class Divergence:
    """Collects the divergence of one engine window by window."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._kl: list[Doubles] = []
        self._agree: list[npt.NDArray[np.bool_]] = []
        self._surprise: list[Doubles] = []

    def add(self, tokens: Sequence[int], truth: Doubles, engine: Floats) -> None:
        """One window: its tokens; after each, the true log-probabilities and the engine's logits."""
        following = np.asarray(tokens[1:])
        for begin in range(0, len(tokens), _ROWS):
            rows = slice(begin, begin + _ROWS)
            p, q = truth[rows], log_softmax(engine[rows])
            self._kl.append((np.exp(p) * (p - q)).sum(axis=1))
            self._agree.append(p.argmax(axis=1) == q.argmax(axis=1))
            known = following[rows]
            self._surprise.append(-q[np.arange(len(known)), known])

    def summary(self) -> Summary:
        """Over all windows so far."""
        kl = np.concatenate(self._kl)
        return Summary(
            name=self.name,
            positions=len(kl),
            mean_kl=float(kl.mean()),
            standard_error=float(kl.std() / np.sqrt(len(kl))),
            median_kl=float(np.median(kl)),
            p99_kl=float(np.quantile(kl, 0.99)),
            max_kl=float(kl.max()),
            top1_agreement=float(np.concatenate(self._agree).mean()),
            perplexity=float(np.exp(np.concatenate(self._surprise).mean())),
        )


def log_softmax(logits: Floats) -> Doubles:
    """Natural logarithms of the probabilities, row by row, in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    logs: Doubles = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return logs
