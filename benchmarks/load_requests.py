"""What the clients of the load test ask for: a fixed catalogue, so that every answer can be checked."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LONGEST = 400
# Prompts begin at one of so many places, so that some share a beginning.
_STARTS = 16


@dataclass(frozen=True)
class Ask:
    """One entry of the catalogue: the body of a streamed completion."""

    index: int
    body: dict[str, Any]

    @property
    def num_prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.body["prompt"])


def make_catalogue(tokens: Sequence[int], count: int, seed: int = 1) -> list[Ask]:
    """``count`` requests with prompts out of a text's tokens, prompts and answers of 1 to 400 tokens.

    Greedy, sampled and penalised ones; most ignore the end of sequence; a quarter wants logprobs.
    """
    rng = random.Random(seed)
    starts = [rng.randrange(len(tokens) - LONGEST) for _ in range(_STARTS)]
    edges = [1, LONGEST]
    asks = []
    for index in range(count):
        start = rng.choice(starts)
        length = edges[index] if index < len(edges) else rng.randint(1, LONGEST)
        limit = edges[-1 - index] if index < len(edges) else rng.randint(1, LONGEST)
        body: dict[str, Any] = {
            "prompt": list(tokens[start : start + length]),
            "max_tokens": limit,
            "ignore_eos": rng.random() < 0.8,
            "stream": True,
            "stream_options": {"include_usage": True},
            "temperature": 0.0,
        }
        if rng.random() < 0.4:
            body |= {"temperature": 0.8, "top_p": 0.95, "seed": rng.randrange(1 << 31)}
        if rng.random() < 0.2:
            body |= {"frequency_penalty": 0.5, "repetition_penalty": 1.1}
        if rng.random() < 0.25:
            body["logprobs"] = 2
        asks.append(Ask(index, body))
    return asks
