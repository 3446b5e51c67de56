"""Streamed completions at the least cost to the machine: bytes are read and hardly looked at."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from urllib.parse import urlsplit

_CHUNK = 1 << 16


async def ask_all(url: str, prompts: Sequence[Sequence[int]], clients: int, tokens: int) -> None:
    """Every prompt once, the next one as soon as one of ``clients`` has its answer of ``tokens`` tokens.

    Raises:
        RuntimeError: an answer that is no stream of as many tokens.
    """
    waiting = list(reversed(prompts))

    async def client() -> None:
        while waiting:
            check(await _ask(url, waiting.pop(), tokens), tokens)

    await asyncio.gather(*(client() for _ in range(clients)))


async def _ask(url: str, prompt: Sequence[int], tokens: int) -> bytes:
    """The whole response to one request, headers and all, on a connection of its own."""
    where = urlsplit(url)
    body = {
        "prompt": list(prompt),
        "max_tokens": tokens,
        "temperature": 0.0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: {where.netloc}\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    writer.write(head.encode() + content)
    parts = []
    while part := await reader.read(_CHUNK):
        parts.append(part)
    writer.close()
    return b"".join(parts)


def check(response: bytes, tokens: int) -> None:
    """Refuse a response that is not a whole stream with so many tokens by its own count."""
    last = next((line for line in reversed(response.splitlines()) if b'"usage":{' in line), None)
    if last is None or b"data: [DONE]" not in response:
        raise RuntimeError(f"no whole answer: {response[:500]!r} ... {response[-500:]!r}")
    found = json.loads(last.removeprefix(b"data: "))["usage"]["completion_tokens"]
    if found != tokens:
        raise RuntimeError(f"an answer of {found} tokens instead of {tokens}")
