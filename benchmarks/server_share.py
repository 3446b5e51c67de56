"""How much of the engine's speed the whole server keeps: streaming over HTTP against the engine in process.

Both run the same requests on the same processors in turns: every client has one request under way, and the
next as soon as it has its answer. Clients run beside the server and cost it as little as clients can.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import signal
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import perf_counter

from rich.console import Console
from rich.table import Table

from http_stream import ask_all
from machine import describe, machine
from model_files import FILE_HELP, model_file
from rooftree_speed import RooftreeSpeed
from served import serve
from side_by_side import make_prompts, take_turns

_TARGET = 0.85


@dataclass(frozen=True)
class Share:
    """Generated tokens per second, medians after a warm-up, and the ratio of medians."""

    served: float
    in_process: float
    ratio: float
    served_range: tuple[float, float]
    in_process_range: tuple[float, float]
    python_share: float
    target: float = _TARGET


def measure(args: argparse.Namespace, log: Path) -> Share:
    """Start both, let them take turns, end both."""
    length = args.prompt_tokens + args.output_tokens + 1
    options = {"max-model-len": length, "max-num-seqs": args.clients, "threads": args.threads}
    flags = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    engine = RooftreeSpeed(args.file, threads=args.threads, sequences=args.clients, length=length)
    seconds: dict[str, list[float]] = {"served": [], "in_process": []}
    aside: list[float] = []

    with serve(str(args.file), [*flags, *shlex.split(args.serve_options)], log) as served:

        def over_http(repeat: int) -> None:
            prompts = make_prompts(args.requests, args.prompt_tokens, seed=repeat)
            begin = perf_counter()
            asyncio.run(ask_all(served.url, prompts, args.clients, args.output_tokens))
            seconds["served"].append(perf_counter() - begin)

        def in_process(repeat: int) -> None:
            prompts = make_prompts(args.requests, args.prompt_tokens, seed=repeat)
            seconds["in_process"].append(engine.serve_seconds(prompts, args.clients, args.output_tokens))
            aside.append(engine.aside_seconds / seconds["in_process"][-1])

        take_turns([in_process, over_http], 1 + args.repeats)
    engine.close()
    tokens = args.requests * args.output_tokens
    rates = {name: sorted(tokens / s for s in values[1:]) for name, values in seconds.items()}
    return Share(
        served=median(rates["served"]),
        in_process=median(rates["in_process"]),
        ratio=median(rates["served"]) / median(rates["in_process"]),
        served_range=(rates["served"][0], rates["served"][-1]),
        in_process_range=(rates["in_process"][0], rates["in_process"][-1]),
        python_share=median(aside[1:]),
    )


def show(share: Share, args: argparse.Namespace) -> None:
    """A table for people."""
    sizes = f"{args.requests} requests of {args.prompt_tokens} + {args.output_tokens} tokens"
    table = Table(title=f"{args.clients} clients, {sizes}")
    for heading in ("", "generated tokens/s", "range"):
        table.add_column(heading, justify="right" if heading else "left")
    for name, rate, ends in (
        ("server, HTTP", share.served, share.served_range),
        ("engine, in process", share.in_process, share.in_process_range),
    ):
        table.add_row(name, f"{rate:.0f}", f"{ends[0]:.0f}-{ends[1]:.0f}")
    table.add_row("ratio", f"{share.ratio:.2f}", f"target {share.target}")
    Console().print(table)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--file", default="smollm2", help=FILE_HELP)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--requests", type=int, help="in a round; default: two of each client")
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2, help="of either engine")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--serve-options", default="", help="more flags of rooftree serve, in one string")
    parser.add_argument("--log", type=Path, help="the server's log; default: a temporary file")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    args = parser.parse_args()
    args.file = model_file(args.file)
    args.requests = args.requests or 2 * args.clients
    return args


def main() -> None:
    args = parse_args()
    facts = machine()
    # So that the server ends with this process, however it is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as folder:
        share = measure(args, args.log or Path(folder) / "serve.log")
    if args.json:
        asked = {
            name: getattr(args, name)
            for name in ("clients", "requests", "prompt_tokens", "output_tokens", "threads", "repeats")
        }
        print(json.dumps({"machine": facts, "file": str(args.file)} | asked | asdict(share), indent=1))
    else:
        show(share, args)
        print(describe(facts))


if __name__ == "__main__":
    main()
