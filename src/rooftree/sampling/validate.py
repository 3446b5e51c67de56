"""Everything about a request's numbers that can be refused before it costs anything.

Server and ``LLM`` call these on every route, so the same request gets the same answer everywhere. After them
a sampler may rely on every id being in the vocabulary and every number being finite and in its range.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from typing import NamedTuple, NoReturn, TypeGuard

from rooftree.errors import RequestError
from rooftree.sampling.params import SamplingParams

MAX_STOP_STRINGS = 16
MAX_TOKEN_IDS = 1024
MAX_CHOICES = 128
_INT64 = 2**63
_FLOAT32_MAX = 2.0**128 - 2.0**104


class _Range(NamedTuple):
    """Legal values of one field, bounds included, and how a message words them."""

    low: float
    high: float
    words: str


_FLOATS = {
    "temperature": _Range(0.0, _FLOAT32_MAX, "a number from 0 (greedy) to 3.4e38 (samplers use 32 bits)"),
    "top_p": _Range(0.0, 1.0, "a number from 0 to 1 (0 keeps the likeliest token only, 1 keeps all)"),
    "min_p": _Range(0.0, 1.0, "a number from 0 (off) to 1"),
    "presence_penalty": _Range(-2.0, 2.0, "a number from -2 to 2"),
    "frequency_penalty": _Range(-2.0, 2.0, "a number from -2 to 2"),
    "repetition_penalty": _Range(0.01, 100.0, "a number from 0.01 to 100 (1 is off)"),
}


def validate_sampling_params(params: SamplingParams, vocab_size: int, max_logprobs: int = 20) -> None:
    """Check every field of ``params`` for type and range.

    ``top_p`` 0 is accepted and means what ``top_k`` 1 does: the nucleus always holds the likeliest token.
    ``top_k`` above the vocabulary is off, as 0 and -1 are. Samplers work with 32-bit floats: every number
    here is one without overflow, and ``repetition_penalty``, which multiplies or divides logits, is kept to
    where they can not overflow either.

    Raises:
        RequestError: 400, ``param`` naming the field, the message its value and what is possible.
    """
    for name, legal in _FLOATS.items():
        _check_float(name, getattr(params, name), legal)
    _check_int("top_k", params.top_k, -1, None, "-1 or 0 (off), or the number of tokens to keep")
    _check_int("n", params.n, 1, MAX_CHOICES, f"a whole number from 1 to {MAX_CHOICES}")
    if params.seed is not None:
        _check_int("seed", params.seed, -_INT64, _INT64 - 1, "a whole number that fits in 64 bits, signed")
    if params.logprobs is not None:
        _check_int("logprobs", params.logprobs, 0, max_logprobs, f"a whole number from 0 to {max_logprobs}")
    if not isinstance(params.ignore_eos, bool):
        _refuse("ignore_eos", params.ignore_eos, "true or false")
    _check_lengths(params)
    _check_stops(params, vocab_size)
    _check_logit_bias(params.logit_bias, vocab_size)


def validate_prompt(token_ids: Sequence[int], vocab_size: int) -> None:
    """Check that a prompt is a non-empty sequence of the vocabulary's ids.

    Raises:
        RequestError: 400, naming the first wrong id and its position.
    """
    if not token_ids:
        raise RequestError("The prompt has no tokens; at least one is needed.", param="prompt")
    if set(map(type, token_ids)) == {int} and min(token_ids) >= 0 and max(token_ids) < vocab_size:
        return
    wrong = next(i for i, token in enumerate(token_ids) if not _is_token_id(token, vocab_size))
    raise RequestError(
        f"Token {wrong} of the prompt is {_show(token_ids[wrong])}; "
        f"this model's token ids are whole numbers from 0 to {vocab_size - 1}.",
        param="prompt",
    )


def resolve_max_tokens(num_prompt_tokens: int, params: SamplingParams, max_model_len: int) -> int:
    """How many tokens a request may generate: ``max_tokens``, or all that the context window leaves.

    Raises:
        RequestError: 400 with prompt length, ``max_tokens`` and window: the prompt fills the window, or
            prompt and answer together would not fit. Nothing is cut to fit.
    """
    room = max_model_len - num_prompt_tokens
    asked = "" if params.max_tokens is None else f" and max_tokens is {params.max_tokens}"
    has = (
        f"The prompt has {num_prompt_tokens} tokens{asked}, but the context window is {max_model_len} tokens"
    )
    if room < 1:
        _refuse_length("prompt", f"{has}, prompt and answer together: shorten the prompt.")
    if params.max_tokens is not None and params.max_tokens > room:
        _refuse_length("max_tokens", f"{has}: shorten the prompt, or lower max_tokens to {room} or less.")
    if params.min_tokens > room:
        _refuse_length(
            "min_tokens", f"{has}: min_tokens is {params.min_tokens}, at most {room} are possible."
        )
    return room if params.max_tokens is None else params.max_tokens


def _check_lengths(params: SamplingParams) -> None:
    if params.max_tokens is not None:
        _check_int("max_tokens", params.max_tokens, 1, None, "a whole number from 1 up, or left out")
    most = params.max_tokens
    limit = "" if most is None else f" to max_tokens, which is {most}"
    _check_int("min_tokens", params.min_tokens, 0, most, f"a whole number from 0 up{limit}")


def _check_stops(params: SamplingParams, vocab_size: int) -> None:
    _check_size("stop", params.stop, (tuple, list), MAX_STOP_STRINGS)
    for text in params.stop:
        if not isinstance(text, str) or not text:
            _refuse("stop", text, "strings of at least one character")
    # A stop token is banned while min_tokens holds: there must always be tokens left to choose from.
    _check_size("stop_token_ids", params.stop_token_ids, (tuple, list), min(MAX_TOKEN_IDS, vocab_size // 2))
    for token in params.stop_token_ids:
        if not _is_token_id(token, vocab_size):
            _refuse("stop_token_ids", token, f"token ids from 0 to {vocab_size - 1}")


def _check_size(name: str, values: object, kinds: tuple[type[Sized], ...], most: int) -> None:
    if not isinstance(values, kinds):
        _refuse(name, values, f"a {kinds[-1].__name__}")
    if len(values) > most:
        raise RequestError(f"{name} has {len(values)} entries; possible: at most {most}.", param=name)


def _check_logit_bias(logit_bias: dict[int, float], vocab_size: int) -> None:
    _check_size("logit_bias", logit_bias, (dict,), MAX_TOKEN_IDS)
    legal = _Range(-100.0, 100.0, "values from -100 to 100")
    for token, bias in logit_bias.items():
        if not _is_token_id(token, vocab_size):
            _refuse("logit_bias", token, f"token ids from 0 to {vocab_size - 1} as keys")
        _check_float("logit_bias", bias, legal)


def _is_token_id(value: object, vocab_size: int) -> bool:
    return _is_int(value) and 0 <= value < vocab_size


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_float(name: str, value: object, legal: _Range) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not legal.low <= value <= legal.high:
        _refuse(name, value, legal.words)


def _check_int(name: str, value: object, low: int, high: int | None, words: str) -> None:
    if not _is_int(value) or value < low or (high is not None and value > high):
        _refuse(name, value, words)


def _refuse(param: str, value: object, possible: str) -> NoReturn:
    raise RequestError(f"{param} is {_show(value)}; possible: {possible}.", param=param)


def _refuse_length(param: str, message: str) -> NoReturn:
    raise RequestError(message, param=param, code="context_length_exceeded")


def _show(value: object) -> str:
    """A value as a message may quote it: short, whatever a client sent."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"a whole number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
