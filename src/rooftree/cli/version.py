"""rooftree version"""

from __future__ import annotations

import click

from rooftree import __version__


@click.command()
def command() -> None:
    """Show the version."""
    click.echo(f"rooftree {__version__}")
