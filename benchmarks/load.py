"""Load test of a whole server: many streaming clients on a small KV pool, some leaving early.

Starts ``rooftree serve``, asks for each request of a catalogue alone, then lets clients ask for them at
random for some minutes. Every answer must equal the one given alone, bit for bit, log-probabilities too; in
the end all blocks are back, the metrics add up, no file is left open, and memory has not grown since the
first third of the time. Exit status 1 if anything of it fails.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import httpx

from load_client import Answer, stream
from load_report import Run, figures, show
from load_requests import Ask, make_catalogue
from machine import describe, machine
from served import Metrics, ProcessState, Served, serve

TEXT = Path(__file__).with_name("data") / "moby_dick_87.txt"
_REST_SECONDS = 20.0
_ASKED_AGAIN = 4


async def ask_alone(client: httpx.AsyncClient, asks: Sequence[Ask]) -> dict[int, Answer]:
    """Each request by itself."""
    answers = {}
    for ask in asks:
        print(f"alone: {ask.index + 1}", end="\r", file=sys.stderr, flush=True)
        answers[ask.index] = await stream(client, ask)
        if answers[ask.index].error is not None:
            raise SystemExit(f"request {ask.index} failed alone: {answers[ask.index].error}")
    return answers


async def one_client(
    client: httpx.AsyncClient, asks: Sequence[Ask], rng: random.Random, leaving: float, until: float
) -> list[Answer]:
    """Request after request until the time is over; the last one is read to its end."""
    answers = []
    while time.monotonic() < until:
        ask = rng.choice(asks)
        leaves = rng.random() < leaving
        answers.append(await stream(client, ask, rng.randrange(ask.body["max_tokens"]) if leaves else None))
    return answers


async def put_under_load(
    client: httpx.AsyncClient, served: Served, asks: Sequence[Ask], args: argparse.Namespace
) -> tuple[list[Answer], float, list[ProcessState], list[ProcessState]]:
    """All clients at once: answers, seconds, and the processes a third into the time and at its end."""
    begin = time.monotonic()
    seconds = 60 * args.minutes
    clients = [
        asyncio.create_task(one_client(client, asks, random.Random(i), args.leaving, begin + seconds))
        for i in range(args.clients)
    ]
    await asyncio.sleep(seconds / 3)
    early = served.processes()
    await asyncio.sleep(begin + seconds - time.monotonic())
    late = served.processes()
    answers = [answer for answers in await asyncio.gather(*clients) for answer in answers]
    return answers, time.monotonic() - begin, early, late


def metrics_at_rest(served: Served) -> Metrics:
    """The metrics once nothing runs; those of the last try if something goes on running."""
    deadline = time.monotonic() + _REST_SECONDS
    while True:
        metrics = served.metrics()
        busy = metrics["rooftree:num_requests_running"] + metrics["rooftree:num_requests_waiting"]
        if busy == 0 or time.monotonic() > deadline:
            return metrics
        time.sleep(0.2)


def processes_at_rest(served: Served, most_files: int | None = None) -> list[ProcessState]:
    """The processes once the API process has closed its connections, or the last try."""
    deadline = time.monotonic() + _REST_SECONDS
    while True:
        time.sleep(1)
        states = served.processes()
        if most_files is None or states[0].files <= most_files or time.monotonic() > deadline:
            return states


def open_client(served: Served, connections: int) -> httpx.AsyncClient:
    """A client with so many connections kept alive."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=connections)
    return httpx.AsyncClient(base_url=served.url, timeout=600, limits=limits)


async def alone_first(served: Served, args: argparse.Namespace) -> dict[int, Answer]:
    """The catalogue's answers, one after another."""
    async with open_client(served, 1) as client:
        text = {"prompt": args.text.read_text(encoding="utf-8")}
        tokens = (await client.post("/tokenize", json=text)).json()["tokens"]
        return await ask_alone(client, make_catalogue(tokens, args.catalogue))


async def then_together(
    served: Served, asks: Sequence[Ask], args: argparse.Namespace
) -> tuple[list[Answer], list[Answer], float, list[ProcessState], list[ProcessState]]:
    """The load, and after it some of the catalogue alone again."""
    async with open_client(served, args.clients) as client:
        answers, seconds, early, late = await put_under_load(client, served, asks, args)
        again = list((await ask_alone(client, asks[:_ASKED_AGAIN])).values())
        return answers, again, seconds, early, late


def run(served: Served, args: argparse.Namespace) -> Run:
    """The whole test against a server that has answered nothing yet."""
    alone = asyncio.run(alone_first(served, args))
    before = processes_at_rest(served)
    asks = [answer.ask for answer in alone.values()]
    answers, again, seconds, early, late = asyncio.run(then_together(served, asks, args))
    metrics = metrics_at_rest(served)
    after = processes_at_rest(served, most_files=before[0].files)
    return Run(alone, answers, again, seconds, early, late, (before, after), metrics)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2", help="as rooftree serve takes it")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument(
        "--leaving", type=float, default=0.2, help="share of requests whose client leaves early"
    )
    parser.add_argument("--catalogue", type=int, default=40, help="different requests")
    parser.add_argument(
        "--kv-cache-memory", default="144MiB", help="the pool; default: about 6,500 tokens of SmolLM2"
    )
    parser.add_argument("--serve-options", default="", help="more flags of rooftree serve, in one string")
    parser.add_argument("--text", type=Path, default=TEXT, help="where the prompts come from")
    parser.add_argument("--log", type=Path, help="the server's log; default: a temporary file")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    facts = machine()
    options = [
        "--kv-cache-memory",
        args.kv_cache_memory,
        "--max-model-len",
        "1024",
        *shlex.split(args.serve_options),
    ]
    # So that the server ends with this process, however it is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as folder:
        log = args.log or Path(folder) / "serve.log"
        with serve(args.model, options, log) as served:
            seen = run(served, args)
    faults, result = seen.faults(), figures(seen)
    if args.json:
        print(json.dumps({"machine": facts, "clients": args.clients, "faults": faults} | result, indent=1))
    else:
        show(result, faults, args.clients)
        print(describe(facts))
    raise SystemExit(1 if faults else 0)


if __name__ == "__main__":
    main()
