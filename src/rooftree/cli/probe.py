"""rooftree probe"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

import click

HELP = """Measure this machine and Rooftree's engine on it, in less than 20 seconds.

\b
  rooftree probe
  rooftree plan model.gguf --device this-machine --concurrency 8      plan with what was measured
  rooftree probe --json --output machine.json

Read bandwidth, fp32 and int8 arithmetic, matrix products by format and batch, and steps of small random
models; then the constants of the step model that explain them. They go to a file that 'rooftree devices',
'rooftree plan' and the engine find by themselves. Probe a machine that is at rest: what else runs on it
counts as slowness.
"""


@click.command(help=HELP)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write; default: where all look.",
)
@click.option("--threads", type=click.IntRange(1, 1024), help="Default: physical cores, as the engine takes.")
@click.option("--isa", help="Kernels to measure; default: the best that this machine runs.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object: what the file holds, and the limits.")
def command(output: Path | None, threads: int | None, isa: str | None, as_json: bool) -> None:
    """See HELP."""
    from rooftree.engine.executors.cores import physical_cores
    from rooftree.engine.executors.cpu import choose_isa
    from rooftree.engine.executors.processor import processor_name
    from rooftree.probe.meter import MachineMeter
    from rooftree.probe.run import run_probe
    from rooftree.roofline.machine import (
        Setting,
        check_writable,
        default_machine_file,
        machine_document,
        write_machine,
    )

    file = output or default_machine_file()
    check_writable(file)
    setting = Setting(processor_name(), threads or physical_cores(), choose_isa(isa))
    with _progress() as progress:
        result = run_probe(MachineMeter(setting), setting, date.today().isoformat(), progress)
    write_machine(result.machine, file)
    if as_json:
        limits = [dataclasses.asdict(each) for each in result.limits]
        document = machine_document(result.machine)
        click.echo(json.dumps({"file": str(file), "limits": limits, **document}, indent=1))
        return
    from rich.console import Console

    from rooftree.probe.report import print_probe

    print_probe(result, Console())
    click.echo(f"written: {file}", err=True)


@contextmanager
def _progress() -> Iterator[Callable[[str, float], None]]:
    """A bar on a terminal, nothing elsewhere."""
    if not sys.stderr.isatty():
        yield lambda what, done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<24}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("probe", total=1.0)
        yield lambda what, done: bar.update(task, description=what, completed=done)
