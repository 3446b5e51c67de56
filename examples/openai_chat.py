"""Chat with a running `rooftree serve` through the official client, the answer streamed as it comes.

    rooftree serve &
    python examples/openai_chat.py "Why is the sky blue?"
    python examples/openai_chat.py            # a conversation, line by line; Ctrl-D ends it

Needs `pip install openai`. The key comes from --api-key or $ROOFTREE_API_KEY, where the server asks for one.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator

from openai import OpenAI, OpenAIError
from openai.types.chat import ChatCompletionMessageParam


def answer(client: OpenAI, model: str, messages: list[ChatCompletionMessageParam], max_tokens: int) -> str:
    """Show one answer as it comes; gives its whole text."""
    stream = client.chat.completions.create(
        model=model,
        messages=messages,
        max_tokens=max_tokens,
        temperature=0.0,
        stream=True,
        stream_options={"include_usage": True},
        # What goes beyond the OpenAI API travels in extra_body.
        extra_body={"repetition_penalty": 1.1},
    )
    pieces = []
    for chunk in stream:
        for choice in chunk.choices:
            piece = choice.delta.content or ""
            pieces.append(piece)
            print(piece, end="", flush=True)
        if chunk.usage is not None:
            print(
                f"\n[{chunk.usage.prompt_tokens} + {chunk.usage.completion_tokens} tokens]", file=sys.stderr
            )
    return "".join(pieces)


def questions(given: str | None) -> Iterator[str]:
    """The question from the command line, or lines from the terminal until it ends."""
    if given is not None:
        yield given
        return
    while True:
        try:
            yield input("> ")
        except EOFError:
            return


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("question", nargs="?")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--api-key", default=os.environ.get("ROOFTREE_API_KEY", "none"))
    parser.add_argument("--max-tokens", type=int, default=256)
    args = parser.parse_args()
    client = OpenAI(base_url=args.base_url, api_key=args.api_key)
    messages: list[ChatCompletionMessageParam] = []
    try:
        model = client.models.list().data[0].id
        for question in questions(args.question):
            messages.append({"role": "user", "content": question})
            text = answer(client, model, messages, args.max_tokens)
            messages.append({"role": "assistant", "content": text})
    except OpenAIError as error:
        sys.exit(f"{args.base_url}: {error}")


if __name__ == "__main__":
    main()
