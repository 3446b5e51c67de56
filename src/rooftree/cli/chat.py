"""rooftree chat"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from rooftree.cli.engine_options import engine_options, take_engine_config
from rooftree.cli.fetching import start_llm
from rooftree.cli.sampling_options import sampling_options, take_sampling_params
from rooftree.errors import RequestError

if TYPE_CHECKING:
    from rooftree.engine.llm import LLM
    from rooftree.sampling.params import SamplingParams

HELP = """Talk with MODEL (default: smollm2) in the terminal.

\b
  rooftree chat
  rooftree chat model.gguf --system "Answer in one sentence." --temperature 0.7
  printf 'Hello!\\nAnd in French?\\n' | rooftree chat

/reset forgets the conversation, /exit (or Ctrl-D) leaves. Ctrl-C stops an answer.
"""


@click.command(help=HELP)
@click.argument("model", default="smollm2")
@click.option("--system", metavar="TEXT", help="A system message at the beginning.")
@sampling_options
@engine_options()
def command(model: str, system: str | None, **values: Any) -> None:
    """See HELP."""
    with start_llm(take_engine_config(model, values)) as llm:
        params = take_sampling_params(values, llm.frontend.generation_defaults)
        Conversation(llm, params, system).run(_lines())


class Conversation:
    """Turns of one conversation, until the lines end."""

    def __init__(self, llm: LLM, params: SamplingParams, system: str | None) -> None:
        self._llm = llm
        self._params = params
        self._opening = [] if system is None else [{"role": "system", "content": system}]
        self._messages = list(self._opening)

    def run(self, lines: Iterator[str]) -> None:
        """Answer each line."""
        for line in lines:
            match line.strip():
                case "":
                    continue
                case "/exit":
                    return
                case "/reset":
                    self._messages = list(self._opening)
                case text if text.startswith("/") and " " not in text:
                    click.echo("commands: /reset, /exit", err=True)
                case text:
                    self._turn(text)

    def _turn(self, text: str) -> None:
        asked = [*self._messages, {"role": "user", "content": text}]
        try:
            answer = self._answer(self._llm.render(asked))
        except RequestError as error:
            hint = "; /reset begins anew" if error.code == "context_length_exceeded" else ""
            click.echo(f"{error.message}{hint}", err=True)
            return
        self._messages = [*asked, {"role": "assistant", "content": answer}]

    def _answer(self, prompt: list[int]) -> str:
        """Write one answer as it comes; what there is of it if Ctrl-C stops it."""
        pieces: list[str] = []
        with _interrupts() as interrupted:
            for output in self._llm.stream(prompt, self._params):
                for choice in output.outputs:
                    pieces.append(choice.text)
                    click.echo(choice.text, nl=False)
                if output.error is not None:
                    raise RequestError(output.error, status=500)
                if interrupted():
                    click.echo(" [stopped]", nl=False, err=True)
                    break
        click.echo()
        return "".join(pieces)


@contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Ctrl-C as a question to ask between steps: an exception inside a step could leave it half done."""
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        yield lambda: bool(seen)
    finally:
        signal.signal(signal.SIGINT, before)


def _lines() -> Iterator[str]:
    """Lines of standard input, with a prompt and line editing on a terminal."""
    if not sys.stdin.isatty():
        yield from sys.stdin
        return
    import readline  # noqa: F401 - gives input() its line editing

    click.echo("/reset forgets the conversation, /exit leaves, Ctrl-C stops an answer", err=True)
    while True:
        try:
            yield input("> ")
        except KeyboardInterrupt:
            click.echo("\n/exit leaves", err=True)
        except EOFError:
            click.echo()
            return
