"""How one request wants its tokens chosen. Plain data that crosses processes as it is."""

from __future__ import annotations

import msgspec


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling options of one request, already validated (``rooftree.sampling.validate``).

    Logits are treated in this order: logit_bias, bans while ``min_tokens`` holds, repetition, presence and
    frequency penalties, temperature, then top-k, top-p, min-p on the tempered distribution. ``temperature`` 0
    means greedy. Logprobs are those of the model's own distribution, before any of this.

    Attributes:
        max_tokens: most tokens to generate; None means up to the context window.
        min_tokens: no stop token, stop string or end-of-sequence can end the answer before this many.
        top_k: 0 or -1: off.
        seed: key of the random numbers; None: drawn afresh for each request.
        logprobs: None: none; n >= 0: the chosen token's and the n most likely ones' at each position.
        ignore_eos: end-of-sequence is an ordinary token.
        n: choices per prompt, each sampled with its own stream of random numbers.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    n: int = 1

    @property
    def has_penalties(self) -> bool:
        """Whether choosing a token depends on the tokens before it, beyond the model."""
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0 or self.repetition_penalty != 1.0
