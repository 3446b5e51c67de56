"""Servers for tests: around a fake engine, in a thread of this process, or the real command."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import uvicorn
from fake_llm import FakeLLM

from rigs.models import successor_weights, tiny_spec, write_hf_model
from rigs.tokenizer import tiny_tokenizer
from rooftree.server.app import build_app
from rooftree.server.config import ServerConfig
from rooftree.server.http_protocol import http_protocol
from rooftree.server.listen import listen
from rooftree.server.metrics import Metrics
from rooftree.server.state import ServerState


@dataclass
class RunningServer:
    """Where the server listens, and its inside."""

    url: str
    port: int
    state: ServerState
    llm: FakeLLM
    http: httpx.Client


@contextlib.contextmanager
def running_server(
    llm: FakeLLM, config: ServerConfig, *, keep_alive: int = 60, max_connections: int = 1000
) -> Iterator[RunningServer]:
    """Serve ``llm`` until the block ends."""
    state = ServerState(config, "tiny", Metrics("tiny"))
    state.llm = llm  # type: ignore[assignment]
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    server = uvicorn.Server(
        uvicorn.Config(
            build_app(state),
            http=http_protocol(max_connections),
            ws="none",
            lifespan="off",
            log_level="warning",
            access_log=False,
            timeout_keep_alive=keep_alive,
        )
    )
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])), daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{port}"
    with httpx.Client(base_url=url, timeout=10) as http:
        yield RunningServer(url, port, state, llm, http)
    server.should_exit = server.force_exit = True
    thread.join(10)
    assert not thread.is_alive()


class ServeProcess:
    """``rooftree serve`` as a user starts it. ``log`` is all that it wrote."""

    def __init__(
        self,
        folder: Path,
        model: Path | str,
        *flags: str,
        port: int | None = None,
        prefix: Sequence[str] = (),
    ) -> None:
        self.port = free_port() if port is None else port
        self.url = f"http://127.0.0.1:{self.port}"
        self._log = folder / f"log-{self.port}"
        command = [*prefix, sys.executable, "-m", "rooftree", "serve", str(model), *flags]
        command += ["--port", str(self.port)]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        self.http = httpx.Client(base_url=self.url, timeout=30)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def health(self) -> int | None:
        """Status of /health; None while nobody listens."""
        try:
            return self.http.get("/health").status_code
        except httpx.TransportError:
            return None

    def wait_ready(self) -> ServeProcess:
        deadline = time.monotonic() + 30
        while self.health() != 200:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.02)
        return self

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def wait(self, seconds: float = 20) -> int:
        return self.process.wait(seconds)

    def __enter__(self) -> ServeProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.http.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(10)
        finally:
            self.process.kill()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


# Where a completion of one character leads: see ``write_walker``.
WALKS: dict[str, list[bytes]] = {
    # Characters cut 1+3, 2+2, 3+1 and 2+1 bytes, and a token of a space and a first byte.
    "\n": [
        *(b"Hi", b" \xc3", b"\xa9", b"\xf0", b"\x9f\x98\x80", b"\xe4\xb8", b"\xad"),
        *(b"\xf0\x9f", b"\x98\x81", b"\xf0\x9f\x98", b"\x82", b"!"),
    ],
    "\t": [b"al", b"pha E", b"N", b"D b", b"eta", b" \xe2\x82", b"\xac."],
}


def write_walker(folder: Path) -> Path:
    """A model that continues each key of WALKS with its tokens and then ends; other letters repeat for ever.

    The walks end in different end-of-sequence ids. The chat template writes the contents alone, so that a
    chat continues as a completion does.
    """
    extra = [token for walk in WALKS.values() for token in walk if len(token) > 1]
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    tokenizer = tiny_tokenizer(512, extra, chat_template=template)
    ends = [tokenizer.eos_token_id, tokenizer.im_end_id]
    successor = list(range(512))
    for (start, walk), end in zip(WALKS.items(), ends, strict=True):
        path = [ord(start), *map(tokenizer.id_of, walk), end]
        for here, after in zip(path, [*path[1:], path[0]], strict=True):
            successor[here] = after
    spec = tiny_spec(max_position_embeddings=8192)
    weights = successor_weights(spec, successor)
    return write_hf_model(folder, spec, weights, tokenizer=tokenizer, config={"eos_token_id": ends})
