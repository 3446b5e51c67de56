"""Prompts: conversations rendered, texts tokenized, lists of prompts told from prompts that are lists."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from rooftree.engine.frontend import INLINE_CHARACTERS
from rooftree.engine.input_processor import check_text_length
from rooftree.errors import RequestError
from rooftree.server.protocol import ChatMessage, to_template
from rooftree.text.json_size import check_json_size

if TYPE_CHECKING:
    from rooftree.engine.async_llm import AsyncLLM

MAX_PROMPTS = 1024
_CHARACTERS_OF_A_MESSAGE = 50


def split_prompts(prompt: str | list[str | int | list[int]]) -> list[str | list[int]]:
    """The prompts of a completion request: a text, token ids, or a list of either.

    Raises:
        RequestError: a list that is empty, too long, or mixes ids with prompts.
    """
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise RequestError("prompt is an empty list; send a text or token ids", param="prompt")
    kinds = set(map(type, prompt))
    if kinds == {int}:
        return [cast("list[int]", prompt)]
    if int in kinds:
        raise RequestError(
            "prompt mixes token ids with whole prompts; send a list of one kind", param="prompt"
        )
    if len(prompt) > MAX_PROMPTS:
        raise RequestError(
            f"prompt lists {len(prompt)} prompts; one request may bring {MAX_PROMPTS}", param="prompt"
        )
    return cast("list[str | list[int]]", prompt)


async def chat_prompt(
    llm: AsyncLLM, messages: Sequence[ChatMessage], *, open_answer: bool = True
) -> list[int]:
    """Token ids of a conversation, ready for the model's turn if ``open_answer``.

    The template writes all special tokens itself, so the tokenizer adds none.

    Raises:
        RequestError: no messages, no template, or a template that refuses them.
    """
    template = llm.chat_template
    if template is None:
        raise RequestError(
            "this model has no chat template; use /v1/completions", param="messages", code="no_chat_template"
        )
    if len(messages) > llm.max_model_len:
        raise RequestError(
            f"messages has {len(messages)} entries, but the context window is {llm.max_model_len} tokens",
            param="messages",
            code="context_length_exceeded",
        )

    def encode() -> list[int]:
        # Templates are given arguments as objects, so all of them are parsed.
        arguments = [call.function.arguments for message in messages for call in message.tool_calls or ()]
        check_json_size("\n".join(arguments).encode(), "what tool calls have as arguments", "messages")
        history = [to_template(message) for message in messages]
        text = template.render(history, add_generation_prompt=open_answer)
        return _encode(llm, text, add_special_tokens=False, param="messages")

    size = sum(map(_num_characters, messages))
    return encode() if size <= INLINE_CHARACTERS else await asyncio.to_thread(encode)


def _num_characters(message: ChatMessage) -> int:
    """Of its text, and as many as take the time of what comes with any message, part or tool call."""
    parts = message.content if isinstance(message.content, list) else ()
    texts = [message.content] if isinstance(message.content, str) else [part.text for part in parts]
    texts += [call.function.arguments for call in message.tool_calls or ()]
    return sum(map(len, texts)) + _CHARACTERS_OF_A_MESSAGE * (1 + len(texts))


async def encode_prompts(llm: AsyncLLM, prompts: Sequence[str | list[int]]) -> list[str | list[int]]:
    """Several prompts as token ids, so that one which is refused is so before the others run.

    Raises:
        RequestError: as ``encode_text``.
    """

    def encode() -> list[str | list[int]]:
        return [
            _encode(llm, prompt, add_special_tokens=True, param="prompt")
            if isinstance(prompt, str)
            else prompt
            for prompt in prompts
        ]

    num_characters = sum(len(prompt) for prompt in prompts if isinstance(prompt, str))
    return encode() if num_characters <= INLINE_CHARACTERS else await asyncio.to_thread(encode)


async def encode_text(llm: AsyncLLM, text: str, *, add_special_tokens: bool, param: str) -> list[int]:
    """Token ids of a text; a long one is tokenized beside the event loop.

    Raises:
        RequestError: a text that has no tokens of the model, or that cannot fit the context window.
    """
    encode = partial(_encode, llm, text, add_special_tokens=add_special_tokens, param=param)
    return encode() if len(text) <= INLINE_CHARACTERS else await asyncio.to_thread(encode)


def _encode(llm: AsyncLLM, text: str, *, add_special_tokens: bool, param: str) -> list[int]:
    check_text_length(llm.tokenizer, text, llm.max_model_len, param)
    return llm.tokenizer.encode(text, add_special_tokens=add_special_tokens, param=param)
