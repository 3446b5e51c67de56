"""Fetching a model with a progress bar, and starting an engine in this process with it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from rooftree.engine.config import EngineConfig

if TYPE_CHECKING:
    from rooftree.checkpoint.base import Checkpoint
    from rooftree.engine.llm import LLM

Progress = Callable[[int, int], None]


@contextmanager
def progress_bar(what: str) -> Iterator[Progress]:
    """A callback for bytes done and in all: a bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    # Only a terminal pays for this import.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def fetch_checkpoint(model: str) -> Checkpoint:
    """Open a model, fetching it first if need be, with a bar."""
    from rooftree.checkpoint.open import open_checkpoint
    from rooftree.checkpoint.pull import KNOWN, find_pulled

    if model in KNOWN and find_pulled(model) is None:
        with progress_bar(f"fetching {model}") as progress:
            return open_checkpoint(model, progress=progress)
    return open_checkpoint(model)


def start_llm(config: EngineConfig) -> LLM:
    """An engine in this process; on a terminal, with a word on what it is at."""
    from rooftree.engine.builder import build_engine_core
    from rooftree.engine.frontend import frontend_of
    from rooftree.engine.llm import LLM

    checkpoint = fetch_checkpoint(config.model)
    frontend = frontend_of(checkpoint)
    core, ready = build_engine_core(config, checkpoint, progress=_tell_phase)
    _tell_phase("")
    for notice in ready.notices:
        click.echo(notice, err=True)
    return LLM.from_parts(core, ready, frontend)


def _tell_phase(phase: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{f'loading: {phase}' if phase else ''}", err=True, nl=False)
