"""The command ``rooftree``. Subcommands are imported when they are called: help and start-up stay quick."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

import click

from rooftree.errors import RooftreeError

# When the command began, as nearly as it can tell.
STARTED = time.monotonic()

COMMANDS = {
    "serve": "Serve a model over the OpenAI API.",
    "run": "Answer one prompt.",
    "chat": "Talk with a model in the terminal.",
    "pull": "Fetch a model.",
    "inspect": "Show what a model is made of.",
    "devices": "List the accelerators that can be planned for.",
    "probe": "Measure this machine, for plans and telemetry.",
    "plan": "Plan capacity: what fits, how fast, what binds, what it costs.",
    "bench": "Measure speed.",
    "version": "Show the version.",
}

HELP = """Serve large language models.

A MODEL is 'smollm2' (fetched on first use), a .gguf file, a Hugging Face directory, or hf:org/name.

\b
  rooftree serve                         an OpenAI-compatible server with SmolLM2 on port 8000
  rooftree run smollm2 "Why is the sky blue?"
  rooftree chat smollm2
  rooftree inspect model.gguf
  rooftree COMMAND --help                more of each
"""


class LazyGroup(click.Group):
    """A group whose commands are the objects named ``command`` in ``rooftree.cli.NAME``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"rooftree.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The table, without importing what it names."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; an error meant for the user becomes one message and exit status 1."""
        try:
            return super().invoke(ctx)
        except RooftreeError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=LazyGroup, help=HELP, context_settings={"help_option_names": ["-h", "--help"]})
def cli() -> None:
    """See HELP."""


def main() -> None:
    """Run the command line; never returns."""
    cli(prog_name="rooftree")
