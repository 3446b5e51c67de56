"""rooftree run"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from rooftree.cli.engine_options import engine_options, take_engine_config
from rooftree.cli.fetching import start_llm
from rooftree.cli.main import STARTED
from rooftree.cli.sampling_options import sampling_options, take_sampling_params

if TYPE_CHECKING:
    from rooftree.engine.outputs import RequestOutput

HELP = """Answer one PROMPT and show the answer as it comes. Without a PROMPT, standard input is read.

\b
  rooftree run smollm2 "Why is the sky blue?"
  rooftree run smollm2 --raw "The capital of France is" --max-tokens 8
  rooftree run smollm2 "Name a colour" --json
  rooftree run model.gguf --temperature 0.7 --seed 1 < question.txt
"""


@click.command(help=HELP)
@click.argument("model")
@click.argument("prompt", required=False)
@click.option("--raw", is_flag=True, help="Continue the prompt as it is: no chat template.")
@click.option("--system", metavar="TEXT", help="A system message before the prompt.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object: text, token ids, usage, timings.")
@sampling_options
@engine_options()
def command(
    model: str, prompt: str | None, raw: bool, system: str | None, as_json: bool, **values: Any
) -> None:
    """See HELP."""
    if raw and system is not None:
        raise click.UsageError("--system needs the chat template: leave --raw out")
    text = sys.stdin.read() if prompt is None else prompt
    with start_llm(take_engine_config(model, values)) as llm:
        params = take_sampling_params(values, llm.frontend.generation_defaults)
        turns = [] if system is None else [{"role": "system", "content": system}]
        whole = text if raw else llm.render([*turns, {"role": "user", "content": text}])
        load_s = time.monotonic() - STARTED
        answer = Answer()
        for output in llm.stream(whole, params):
            piece = answer.add(output)
            if not as_json:
                click.echo(piece, nl=False)
    click.echo(json.dumps(answer.facts(model, load_s), ensure_ascii=False) if as_json else "")


class Answer:
    """One answer and its times, in seconds."""

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.token_ids: list[int] = []
        self.finish_reason: str | None = None
        self.usage: dict[str, int] = {}
        self.first_token = self.last_token = 0.0
        self._begun = time.monotonic()

    def add(self, output: RequestOutput) -> str:
        """Take in a delta of a request with one choice; its text."""
        if output.error is not None:
            raise click.ClickException(output.error)
        text = "".join(choice.text for choice in output.outputs)
        for choice in output.outputs:
            if choice.token_ids:
                self.last_token = time.monotonic() - self._begun
                self.first_token = self.first_token or self.last_token
            self.token_ids += choice.token_ids
            self.finish_reason = choice.finish_reason
        self.pieces.append(text)
        self.usage = {
            "prompt_tokens": len(output.prompt_token_ids),
            "completion_tokens": len(self.token_ids),
            "cached_tokens": output.num_cached_tokens,
        }
        return text

    def facts(self, model: str, load_s: float) -> dict[str, object]:
        """What --json shows."""
        later = len(self.token_ids) - 1
        return {
            "model": model,
            "text": "".join(self.pieces),
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason,
            "usage": self.usage,
            "timings": {
                "load_s": load_s,
                "ttft_s": self.first_token,
                "tpot_s": (self.last_token - self.first_token) / later if later > 0 else None,
            },
        }
