"""From a request's fields to ``SamplingParams``."""

from __future__ import annotations

from collections.abc import Mapping

from rooftree.errors import RequestError
from rooftree.sampling.params import SamplingParams
from rooftree.server.protocol import ChatCompletionRequest, CompletionRequest, GenerationRequest

# Only these fields of a model's generation_config are taken over where a request is silent, as vLLM does.
MODEL_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
MAX_TOP_LOGPROBS = 20


def sampling_params(
    request: ChatCompletionRequest | CompletionRequest, defaults: Mapping[str, float | int]
) -> SamplingParams:
    """The request's parameters; what it leaves out is the model's default, then ``SamplingParams``' own.

    Only what the protocol itself forbids is refused here; ranges are ``rooftree.sampling.validate``'s.

    Raises:
        RequestError: 400 naming the field.
    """
    given = {
        name: value
        for name in (
            "min_tokens",
            "presence_penalty",
            "frequency_penalty",
            "seed",
            "ignore_eos",
            "logit_bias",
            "n",
        )
        if (value := getattr(request, name)) is not None
    }
    for name in MODEL_DEFAULTS:
        value = getattr(request, name)
        if value is None:
            value = defaults.get(name)
        if value is not None:
            given[name] = value
    return SamplingParams(
        max_tokens=_max_tokens(request),
        stop=_stop(request.stop),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        logprobs=_logprobs(request),
        **given,
    )


def wants_usage(request: GenerationRequest) -> bool:
    """Whether a stream ends with its usage.

    Raises:
        RequestError: stream options without a stream, or ones that are not supported.
    """
    options = request.stream_options
    if options is None:
        return False
    if not request.stream:
        raise RequestError("stream_options needs stream: true", param="stream_options")
    for name in ("include_obfuscation", "continuous_usage_stats"):
        if getattr(options, name):
            raise RequestError(
                f"{name!r} is not supported yet; leave it out or send false",
                param=f"stream_options.{name}",
                code="unsupported_field",
            )
    return bool(options.include_usage)


def _max_tokens(request: GenerationRequest) -> int | None:
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise RequestError(
            f"max_tokens {old} and max_completion_tokens {new} contradict each other; send one of them",
            param="max_completion_tokens",
        )
    return old if new is None else new


def _stop(stop: str | list[str] | None) -> tuple[str, ...]:
    if stop is None:
        return ()
    return (stop,) if isinstance(stop, str) else tuple(stop)


def _logprobs(request: ChatCompletionRequest | CompletionRequest) -> int | None:
    if isinstance(request, CompletionRequest):
        return _top(request.logprobs, "logprobs")
    top = _top(request.top_logprobs, "top_logprobs")
    if top and not request.logprobs:
        raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
    return (top or 0) if request.logprobs else None


def _top(count: int | None, name: str) -> int | None:
    if count is not None and not 0 <= count <= MAX_TOP_LOGPROBS:
        raise RequestError(f"{name} {count} is outside 0 to {MAX_TOP_LOGPROBS}", param=name)
    return count
