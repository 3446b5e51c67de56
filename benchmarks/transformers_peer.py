"""Hugging Face transformers on the CPU, as its users run it: eager, its default attention, one batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from numpy import float32
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.utils.logging import disable_progress_bar


class TransformersSpeed:
    """Times ``model.forward`` with a KV cache and the argmax over its last logits.

    Prompts of the last decode stay in its cache and are not computed again.

    Args:
        dtype: of weights and activations, a name of torch's.

    Attributes:
        aside_seconds: the part of the last timing that the argmax took.
    """

    def __init__(self, folder: Path, *, threads: int, dtype: str) -> None:
        self._model = _load(folder, threads, dtype)
        self.aside_seconds = 0.0
        self._cached: list[list[int]] = []
        self._cache: Any = None
        self._first_tokens: torch.Tensor = torch.zeros(0)

    def prefill_seconds(self, prompt: Sequence[int]) -> float:
        """From a prompt to its first token."""
        begin = perf_counter()
        self.aside_seconds = 0.0
        self._forward(torch.tensor([list(prompt)]), DynamicCache())
        return perf_counter() - begin

    def decode_seconds(self, prompts: Sequence[Sequence[int]], steps: int) -> float:
        """``steps`` steps of one token for each of the prompts, which are computed before and not timed."""
        self._hold(prompts)
        tokens = self._first_tokens
        self.aside_seconds = 0.0
        begin = perf_counter()
        for _ in range(steps):
            tokens = self._forward(tokens, self._cache)
        return perf_counter() - begin

    def _hold(self, prompts: Sequence[Sequence[int]]) -> None:
        """Bring the cache to hold these prompts and nothing else."""
        wanted = [list(prompt) for prompt in prompts]
        if wanted == self._cached:
            # A negative number is how many tokens to take away.
            self._cache.crop(len(wanted[0]) - self._cache.get_seq_length())
            return
        self._cache = DynamicCache()
        self._first_tokens = self._forward(torch.tensor(wanted), self._cache)
        self._cached = wanted

    def _forward(self, tokens: torch.Tensor, cache: Any) -> torch.Tensor:
        """Tokens (sequences, 1) that follow those given, (sequences, number)."""
        with torch.inference_mode():
            out = self._model(input_ids=tokens, past_key_values=cache, use_cache=True, logits_to_keep=1)
            computed = perf_counter()
            following: torch.Tensor = out.logits[:, -1:].argmax(dim=-1)
            self.aside_seconds += perf_counter() - computed
        return following

    def close(self) -> None:
        """Give its memory back."""
        self._model = self._cache = None


class TransformersLogits:
    """Logits at every position of a text, by one forward pass.

    Args:
        dtype: of weights and activations, a name of torch's.
    """

    def __init__(self, folder: Path, *, threads: int, dtype: str) -> None:
        self._model = _load(folder, threads, dtype)

    def logits(self, tokens: Sequence[int]) -> NDArray[float32]:
        """(positions, vocab)."""
        with torch.inference_mode():
            logits: torch.Tensor = self._model(input_ids=torch.tensor([list(tokens)]), use_cache=False).logits
        values: NDArray[float32] = logits[0].float().numpy()
        return values


def _load(folder: Path, threads: int, dtype: str) -> Any:
    torch.set_num_threads(threads)
    disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
