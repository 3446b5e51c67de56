"""POST /tokenize and /detokenize."""

from __future__ import annotations

import asyncio
from functools import partial

from starlette.requests import Request

from rooftree.engine.frontend import INLINE_CHARACTERS
from rooftree.errors import RequestError
from rooftree.server.answers import JsonAnswer
from rooftree.server.prompts import chat_prompt, encode_text
from rooftree.server.protocol import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from rooftree.server.requests import read


async def tokenize(request: Request) -> JsonAnswer:
    """Ids of a text (with the special tokens that a completion would get) or of a conversation."""
    state, body = await read(request, TokenizeRequest, {})
    llm = state.ready_llm()
    state.model_name(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise RequestError("send either prompt or messages", param="prompt")
    if body.messages is not None:
        if body.add_special_tokens:
            raise RequestError(
                "add_special_tokens applies to prompt; a chat template writes its own",
                param="add_special_tokens",
            )
        tokens = await chat_prompt(llm, body.messages, open_answer=body.add_generation_prompt is not False)
    else:
        if body.add_generation_prompt is not None:
            raise RequestError("add_generation_prompt applies to messages", param="add_generation_prompt")
        special = body.add_special_tokens is not False
        tokens = await encode_text(llm, body.prompt or "", add_special_tokens=special, param="prompt")
    return JsonAnswer(TokenizeResponse(len(tokens), llm.max_model_len, tokens))


async def detokenize(request: Request) -> JsonAnswer:
    """Text of ids."""
    state, body = await read(request, DetokenizeRequest, {})
    llm = state.ready_llm()
    state.model_name(body.model)
    llm.tokenizer.check_ids(body.tokens, param="tokens")
    decode = partial(llm.tokenizer.decode, body.tokens, skip_special_tokens=False)
    text = decode() if len(body.tokens) <= INLINE_CHARACTERS else await asyncio.to_thread(decode)
    return JsonAnswer(DetokenizeResponse(text))
