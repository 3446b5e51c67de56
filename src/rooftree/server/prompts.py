"""Prompts: conversations rendered, texts tokenized, lists of prompts told from prompts that are lists."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from rooftree.engine.frontend import INLINE_CHARACTERS
from rooftree.engine.input_processor import check_text_length
from rooftree.errors import RequestError
from rooftree.server.protocol import ChatMessage, to_template

if TYPE_CHECKING:
    from rooftree.engine.async_llm import AsyncLLM

MAX_PROMPTS = 1024


def split_prompts(prompt: str | Sequence[str | int | Sequence[int]]) -> list[str | list[int]]:
    """The prompts of a completion request: a text, token ids, or a list of either.

    Raises:
        RequestError: a list that is empty, too long, or mixes ids with prompts.
    """
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise RequestError("prompt is an empty list; send a text or token ids", param="prompt")
    ids = [item for item in prompt if isinstance(item, int)]
    if len(ids) == len(prompt):
        return [ids]
    if ids:
        raise RequestError(
            "prompt mixes token ids with whole prompts; send a list of one kind", param="prompt"
        )
    if len(prompt) > MAX_PROMPTS:
        raise RequestError(
            f"prompt lists {len(prompt)} prompts; one request may bring {MAX_PROMPTS}", param="prompt"
        )
    return [item if isinstance(item, str) else list(item) for item in prompt if not isinstance(item, int)]


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
    history = [to_template(message) for message in messages]
    text = template.render(history, add_generation_prompt=open_answer)
    return await encode_text(llm, text, add_special_tokens=False, param="messages")


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
