"""What start-up tells the person who started it: seconds, memory, address, and a first command to try."""

from __future__ import annotations

import contextlib
import sys
from typing import TextIO

from rooftree.engine.messages import EngineReady

COLUMNS = ("memory", "size", "chosen by")


def print_report(
    ready: EngineReady, name: str, url: str, seconds: float, *, key_needed: bool, out: TextIO | None = None
) -> None:
    """Print it to ``out``, standard error by default: in colour on a terminal and plainly elsewhere.

    Where nobody can read it (the pipe or standard error is closed, the disk full), the server goes on.
    """
    out = sys.stderr if out is None else out
    if out is not None:
        with contextlib.suppress(OSError):
            _print(ready, name, url, seconds, key_needed, out)


def _print(ready: EngineReady, name: str, url: str, seconds: float, key_needed: bool, out: TextIO) -> None:
    phases = ", ".join(f"{phase} {spent:.2f} s" for phase, spent in ready.phase_seconds.items())
    headline = f"{name} is ready on {url} after {seconds:.2f} s ({phases})"
    command = _curl(name, url, key_needed)
    if out.isatty():
        _print_rich(ready, headline, command, out)
        return
    lines = [headline, *_plain_table([COLUMNS, *ready.memory_table]), *ready.notices, "try:", command]
    print("\n".join(lines), file=out, flush=True)


def _print_rich(ready: EngineReady, headline: str, command: str, out: TextIO) -> None:
    # Only a terminal pays for this import, and only once the server answers.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=out)
    table = Table(*COLUMNS, box=None, header_style="bold", pad_edge=False)
    for row in ready.memory_table:
        table.add_row(*(Text(cell) for cell in row))
    console.print(Text(headline, style="bold green"))
    console.print(table)
    for notice in ready.notices:
        console.print(Text(notice, style="yellow"))
    console.print(Text("try:", style="bold"))
    console.print(Text(command), soft_wrap=True)


def _plain_table(rows: list[tuple[str, str, str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return [f"  {row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]}" for row in rows]


def _curl(name: str, url: str, key_needed: bool) -> str:
    key = " -H 'Authorization: Bearer KEY'" if key_needed else ""
    body = f'{{"model": "{name}", "messages": [{{"role": "user", "content": "Hello!"}}]}}'
    return f"curl {url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d '{body}'"
