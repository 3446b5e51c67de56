"""The door: everything about a request is checked here, before it can cost anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count
from secrets import randbits
from typing import TYPE_CHECKING

from msgspec.structs import replace

from rooftree.engine.messages import EngineCoreRequest
from rooftree.errors import RequestError
from rooftree.sampling.params import SamplingParams
from rooftree.sampling.validate import resolve_max_tokens, validate_prompt, validate_sampling_params

if TYPE_CHECKING:
    from rooftree.text.tokenizer import Tokenizer

Prompt = str | Sequence[int]

_SEEDS = 1 << 64
_INT64 = 1 << 63
_MAX_SALT = 1024


@dataclass(frozen=True, slots=True)
class ProcessedRequest:
    """A request that may run: one ``EngineCoreRequest`` for each of its choices, in order.

    Their ids are never used again, even where a caller uses his: what the core and its executor remember of
    an ended generation, or hear of it late, cannot touch another.
    """

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    max_tokens: int
    choices: tuple[EngineCoreRequest, ...]


class InputProcessor:
    """Turns what a caller asks into what the core runs, or refuses it.

    Args:
        vocab_size: rows of the model's head: prompt ids, biases and stop ids must be below it.
        eos_token_ids: ids that end an answer.
        draw_seed: a number in [0, 2^64) for a request that named none.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        max_model_len: int,
        allow_priority: bool = False,
        draw_seed: Callable[[], int] = lambda: randbits(63),
    ) -> None:
        self.max_model_len = max_model_len
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._allow_priority = allow_priority
        self._draw_seed = draw_seed
        self._serial = count()

    def tokenize(self, prompt: Prompt) -> list[int]:
        """Token ids of a prompt; text gets the special tokens that the tokenizer adds by itself.

        Raises:
            RequestError: no tokens, ids that are not the model's, or text that is not Unicode or that
                cannot fit the context window.
        """
        if isinstance(prompt, str):
            check_text_length(self._tokenizer, prompt, self.max_model_len, "prompt")
            _check_text(prompt, "prompt")
            tokens = self._tokenizer.encode(prompt, add_special_tokens=True)
        else:
            tokens = list(prompt)
        validate_prompt(tokens, self._vocab_size)
        return tokens

    def process(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str = "",
    ) -> ProcessedRequest:
        """Check a request and split it into its choices.

        Args:
            prompt_token_ids: as ``tokenize`` returned them.

        Raises:
            RequestError: what is wrong, with the numbers and what is possible.
        """
        validate_sampling_params(params, self._vocab_size)
        max_tokens = resolve_max_tokens(len(prompt_token_ids), params, self.max_model_len)
        self._check_priority(priority)
        _check_salt(cache_salt)
        seed = (self._draw_seed() if params.seed is None else params.seed) % _SEEDS
        core_params = self._core_params(params)
        serial = next(self._serial)
        choices = tuple(
            EngineCoreRequest(
                f"{serial}.{index}:{request_id}",
                prompt_token_ids,
                core_params,
                max_tokens,
                choice_seed(seed, index),
                self._eos_token_ids,
                priority,
                cache_salt,
            )
            for index in range(params.n)
        )
        return ProcessedRequest(request_id, prompt_token_ids, params, max_tokens, choices)

    def _core_params(self, params: SamplingParams) -> SamplingParams:
        """``params`` without what the front end does itself, every number small enough for the wire."""
        return replace(params, stop=(), n=1, seed=None, top_k=min(params.top_k, self._vocab_size))

    def _check_priority(self, priority: int) -> None:
        if priority != 0 and not self._allow_priority:
            raise RequestError(
                f"priority is {priority}, but this server runs requests in order of arrival; leave it out "
                f"or start the server with --scheduling-policy priority",
                param="priority",
            )
        if not -_INT64 <= priority < _INT64:
            raise RequestError(f"priority is {priority}; possible: a 64-bit number", param="priority")


def check_text_length(tokenizer: Tokenizer, text: str, max_model_len: int, param: str) -> None:
    """Refuse a text that has more tokens than the context window however it is tokenized.

    Tokenizing costs seconds and gigabytes for the longest texts that a server takes in, so it must not come
    first.

    Raises:
        RequestError: 400 with the text's characters, the fewest tokens they can be, and the window.
    """
    # There is nothing to work out for most texts: a token stands for one character or more.
    if len(text) < max_model_len or (bound := tokenizer.length_bound) is None:
        return
    fewest = bound.fewest_tokens(text)
    if fewest < max_model_len:
        return
    raise RequestError(
        f"{param} has {len(text)} characters, which are {fewest} tokens at least (no token of this model "
        f"stands for more than {bound.longest}), but the context window is {max_model_len} tokens, prompt "
        f"and answer together: shorten it.",
        param=param,
        code="context_length_exceeded",
    )


def choice_seed(seed: int, index: int) -> int:
    """Key of the random numbers of choice ``index``, in [0, 2^64): the first keeps the request's own seed.

    The others are a hash of both numbers: neither neighbouring seeds nor neighbouring choices share streams.
    """
    if index == 0:
        return seed
    message = seed.to_bytes(8, "little") + index.to_bytes(8, "little")
    return int.from_bytes(blake2b(message, digest_size=8, person=b"rooftree-choice").digest(), "little")


def _check_salt(cache_salt: str) -> None:
    # Each choice carries its own copy to the engine.
    if len(cache_salt) > _MAX_SALT:
        raise RequestError(
            f"cache_salt has {len(cache_salt)} characters; possible: at most {_MAX_SALT}", param="cache_salt"
        )
    _check_text(cache_salt, "cache_salt")


def _check_text(text: str, param: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{param} holds half a surrogate pair at character {error.start}; it must be Unicode text",
            param=param,
        ) from None
