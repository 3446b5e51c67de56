"""llama.cpp through its C API: one sequence per request, flash attention on, fp16 KV."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

_UBATCH = 512
# llama.cpp rounds the length of each sequence up to this.
_LENGTH_STEP = 256


class LlamaCpp:
    """A loaded model and one context of a fixed shape.

    Args:
        sequences: requests at once; the context holds no more, which is what suits llama.cpp best.
        length: tokens of each sequence.
    """

    def __init__(self, path: Path, *, threads: int, sequences: int, length: int) -> None:
        logging.getLogger("llama-cpp-python").setLevel(logging.ERROR)
        self._model = llama_cpp.llama_model_load_from_file(
            bytes(path), llama_cpp.llama_model_default_params()
        )
        if self._model is None:
            raise SystemExit(f"{path}: llama.cpp cannot load it")
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        params = llama_cpp.llama_context_default_params()
        room = -(-length // _LENGTH_STEP) * _LENGTH_STEP
        params.n_ctx, params.n_seq_max = sequences * room, sequences
        params.n_batch, params.n_ubatch = max(_UBATCH, room), _UBATCH
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_ENABLED
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = _Batch(max(length, sequences))

    def clear(self) -> None:
        """Forget all sequences."""
        llama_cpp.llama_memory_clear(self._memory, False)

    def rewind(self, sequence: int, position: int) -> None:
        """Forget what a sequence holds from a position on."""
        if not llama_cpp.llama_memory_seq_rm(self._memory, sequence, position, -1):
            raise RuntimeError(f"llama.cpp cannot forget a part of sequence {sequence}")

    def prefill(self, tokens: Sequence[int], sequence: int = 0, *, all_logits: bool = False) -> Floats:
        """Compute a prompt; gives the logits after its last token, or after each, (rows, vocab)."""
        batch, n = self._batch, len(tokens)
        batch.fill(tokens, range(n), [sequence] * n)
        batch.wants_logits[:n] = all_logits
        batch.wants_logits[n - 1] = 1
        return self._decode(n, n if all_logits else 1)

    def step(self, tokens: Sequence[int], position: int) -> Floats:
        """Compute one token of each sequence, all at the same position; logits (sequences, vocab)."""
        n = len(tokens)
        self._batch.fill(tokens, [position] * n, range(n))
        self._batch.wants_logits[:n] = 1
        return self._decode(n, n)

    def _decode(self, num_tokens: int, rows: int) -> Floats:
        self._batch.handle.n_tokens = num_tokens
        status = llama_cpp.llama_decode(self._context, self._batch.handle)
        if status != 0:
            raise RuntimeError(f"llama_decode gave {status}")
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits(self._context), (rows, self.vocab_size))

    def close(self) -> None:
        """Give its memory and threads back."""
        self._batch.close()
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)


class _Batch:
    """A ``llama_batch`` filled by numpy, so that Python's share of a step is small."""

    def __init__(self, capacity: int) -> None:
        self.handle: Any = llama_cpp.llama_batch_init(capacity, 0, 1)
        self._tokens = np.ctypeslib.as_array(self.handle.token, (capacity,))
        self._positions = np.ctypeslib.as_array(self.handle.pos, (capacity,))
        self.wants_logits = np.ctypeslib.as_array(self.handle.logits, (capacity,))
        np.ctypeslib.as_array(self.handle.n_seq_id, (capacity,))[:] = 1
        self._sequences: list[int] = []

    def fill(self, tokens: Sequence[int], positions: Sequence[int], sequences: Sequence[int]) -> None:
        n = len(tokens)
        self._tokens[:n] = tokens
        self._positions[:n] = positions
        if list(sequences) != self._sequences:
            self._sequences = list(sequences)
            for i, sequence in enumerate(sequences):
                self.handle.seq_id[i][0] = sequence

    def close(self) -> None:
        llama_cpp.llama_batch_free(self.handle)


class LlamaCppSpeed:
    """Times llama.cpp. The argmax over its logits is numpy's, where they lie: the cheapest greedy sampler.

    Prompts of the last decode stay in its cache and are not computed again.
    ``aside_seconds`` is the part of the last timing that the argmax took.
    """

    def __init__(self, path: Path, *, threads: int, sequences: int, length: int) -> None:
        self._llama = LlamaCpp(path, threads=threads, sequences=sequences, length=length)
        self.vocab_size: int = self._llama.vocab_size
        self.aside_seconds = 0.0
        self._cached: list[list[int]] = []
        self._first_tokens: list[int] = []

    def prefill_seconds(self, prompt: Sequence[int]) -> float:
        """From a prompt to its first token."""
        self._llama.clear()
        self._cached = []
        begin = perf_counter()
        logits = self._llama.prefill(prompt)
        computed = perf_counter()
        logits.argmax(axis=-1)
        end = perf_counter()
        self.aside_seconds = end - computed
        return end - begin

    def decode_seconds(self, prompts: Sequence[Sequence[int]], steps: int) -> float:
        """``steps`` steps of one token for each of the prompts, which are computed before and not timed."""
        llama, position, argmax = self._llama, len(prompts[0]), 0.0
        self._hold(prompts)
        tokens = self._first_tokens
        begin = perf_counter()
        for i in range(steps):
            logits = llama.step(tokens, position + i)
            computed = perf_counter()
            tokens = logits.argmax(axis=-1).tolist()
            argmax += perf_counter() - computed
        seconds = perf_counter() - begin
        self.aside_seconds = argmax
        return seconds

    def _hold(self, prompts: Sequence[Sequence[int]]) -> None:
        """Bring the cache to hold these prompts, sequence by sequence, and nothing else."""
        wanted = [list(prompt) for prompt in prompts]
        if wanted == self._cached:
            for i, prompt in enumerate(prompts):
                self._llama.rewind(i, len(prompt))
            return
        self._llama.clear()
        self._first_tokens = [int(self._llama.prefill(p, i).argmax()) for i, p in enumerate(wanted)]
        self._cached = wanted

    def close(self) -> None:
        """Give its memory and threads back."""
        self._llama.close()
