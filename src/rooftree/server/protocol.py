"""The OpenAI API's requests and responses, as data.

Extensions to that API, spelt as vLLM spells them: ``top_k``, ``min_p``, ``repetition_penalty``,
``min_tokens``, ``ignore_eos``, ``stop_token_ids``, ``priority`` (lower runs earlier under the priority
policy), ``cache_salt`` (prefixes are shared only between requests of the same salt), and ``stop_reason`` in
answers.
``user``, ``metadata``, ``safety_identifier`` and ``prompt_cache_key`` are accepted and change nothing.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from rooftree.scheduler.request import FinishReason


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``include_usage``: end the stream with a chunk that carries the usage. The others must be off."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What chat and plain completions have in common. None: not given."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None


class ContentPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A piece of a message. Only text is understood."""

    type: Literal["text"]
    text: str


class FunctionCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A call in the history: ``arguments`` is the JSON text that the model wrote."""

    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tool call in the history."""

    function: FunctionCall
    id: str | None = None
    type: Literal["function"] = "function"
    index: int | None = None


class ChatMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message of a conversation. Clients send answers back as they came: hence the empty fields."""

    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: None = None
    audio: None = None
    function_call: None = None
    annotations: list[None] | None = None


TEMPLATE_FIELDS = ("role", "content", "name", "tool_calls", "tool_call_id")


class ChatCompletionRequest(GenerationRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/chat/completions. ``logprobs`` turns them on, ``top_logprobs`` adds the most likely others."""

    messages: list[ChatMessage]
    logprobs: bool | None = None
    top_logprobs: int | None = None


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/completions. A prompt is a text or a list of token ids; a list of either asks for several."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /tokenize, with a text or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /detokenize."""

    tokens: list[int]
    model: str | None = None


class TokenizeResponse(msgspec.Struct, frozen=True):
    """Ids of a text or of a rendered conversation."""

    count: int
    max_model_len: int
    tokens: list[int]


class DetokenizeResponse(msgspec.Struct, frozen=True):
    """Text of ids, special tokens included."""

    prompt: str


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """``cached_tokens``: prompt tokens whose K and V were still in the cache."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Tokens of a whole request. A prompt counts once, however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class TopLogprob(msgspec.Struct, frozen=True):
    """A likely token at a position. ``bytes``: exact, since a token may be a part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct, frozen=True):
    """The chosen token at a position, and the most likely ones."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """Logprobs of a chat choice or of a chunk of it."""

    content: list[TokenLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Logprobs of a plain completion: four lists of equal length.

    ``text_offset`` is the position in the choice's text, in characters, where each token begins. A token that
    is not UTF-8 by itself is spelt ``bytes:\\xe2\\x82``.
    """

    text_offset: list[int]
    token_logprobs: list[float]
    tokens: list[str]
    top_logprobs: list[dict[str, float]] | None


class AssistantMessage(msgspec.Struct, frozen=True):
    """The answer."""

    content: str
    role: str = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True):
    """One answer of a chat completion."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: int | str | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, frozen=True, tag_field="object", tag="chat.completion"):
    """The whole answer of POST /v1/chat/completions."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage


class Delta(msgspec.Struct, frozen=True):
    """What a chunk adds to a message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True):
    """One choice's part of a chunk."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | UnsetType = UNSET


class ChatChunk(msgspec.Struct, frozen=True, tag_field="object", tag="chat.completion.chunk"):
    """One event of a chat stream. ``usage``: null in all but the last; absent if it was not asked for."""

    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType | None = UNSET


class CompletionChoice(msgspec.Struct, frozen=True):
    """One choice of a plain completion, whole or in part."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | UnsetType = UNSET


class Completion(msgspec.Struct, frozen=True, tag_field="object", tag="text_completion"):
    """The whole answer of POST /v1/completions, or one event of its stream."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType | None = UNSET


class ModelCard(msgspec.Struct, frozen=True, tag_field="object", tag="model"):
    """A served model."""

    id: str
    created: int
    root: str
    max_model_len: int
    owned_by: str = "rooftree"


class ModelList(msgspec.Struct, frozen=True, tag_field="object", tag="list"):
    """GET /v1/models."""

    data: list[ModelCard]


class ErrorBody(msgspec.Struct, frozen=True):
    """What went wrong. ``param``: the field at fault."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(msgspec.Struct, frozen=True):
    """The body of every answer that is not a success."""

    error: ErrorBody


def if_any(stop_reason: int | str | None) -> int | str | UnsetType:
    """The stop string or id that ended a choice; the field is left out where none did."""
    return UNSET if stop_reason is None else stop_reason


def to_template(message: ChatMessage) -> dict[str, Any]:
    """A message as chat templates read it: absent fields left out."""
    fields = {name: getattr(message, name) for name in TEMPLATE_FIELDS}
    return {name: msgspec.to_builtins(value) for name, value in fields.items() if value is not None}
