"""What can never run is refused before it waits."""

from __future__ import annotations

from rooftree.errors import RequestError


def validate_capacity(num_prompt_tokens: int, max_tokens: int, num_blocks: int, block_size: int) -> None:
    """Refuse a request that would not fit the KV cache even with nothing else running.

    Raises:
        RequestError: 400 with the tokens asked and the tokens the whole pool holds.
    """
    capacity = num_blocks * block_size
    if num_prompt_tokens + max_tokens <= capacity:
        return
    asked = f"{num_prompt_tokens} prompt tokens and max_tokens={max_tokens} need room for"
    pool = f"the whole KV cache holds {capacity} ({num_blocks} blocks of {block_size})"
    raise RequestError(
        f"{asked} {num_prompt_tokens + max_tokens} tokens, but {pool}. "
        "Shorten the prompt, lower max_tokens, or start the server with a larger --kv-cache-memory.",
        param="prompt" if num_prompt_tokens >= capacity else "max_tokens",
        code="context_length_exceeded",
    )
