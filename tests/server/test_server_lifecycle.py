"""The serving process as a user and a service manager see it: start, readiness, signals, exit status."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from server_rig import ServeProcess, free_port, write_walker

from rooftree.errors import ConfigError
from rooftree.server.listen import address_of, listen

ENDLESS = {"prompt": "z", "stream": True, "max_tokens": 8000}
ANSWER = {"prompt": "x\n", "temperature": 0}
SMALL = ("--threads", "1", "--kv-cache-memory", "16MiB")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_walker(tmp_path_factory.mktemp("walker") / "walker")


@pytest.fixture
def stuck_model(tmp_path: Path) -> Path:
    """A directory with a file that never opens: whoever reads it loads for ever."""
    folder = tmp_path / "stuck"
    folder.mkdir()
    os.mkfifo(folder / "config.json")
    return folder


class Stream(threading.Thread):
    """A streamed completion, read to its end in a thread; ``begun`` once the first bytes are there."""

    def __init__(self, server: ServeProcess, **change: Any) -> None:
        super().__init__(daemon=True)
        self.begun = threading.Event()
        self.events: list[str] = []
        self._server, self._body = server, ENDLESS | change
        self.start()
        assert self.begun.wait(10)

    def run(self) -> None:
        with self._server.http.stream("POST", "/v1/completions", json=self._body) as response:
            for line in response.iter_lines():
                self.begun.set()
                if line:
                    self.events.append(line.removeprefix("data: "))

    def result(self) -> list[str]:
        self.join(15)
        assert not self.is_alive()
        return self.events


def assert_gone(server: ServeProcess, children: list[psutil.Process]) -> None:
    assert not psutil.wait_procs(children, timeout=3)[1]
    with socket.create_server(("127.0.0.1", server.port)):
        pass


def test_a_taken_port_ends_the_command_before_anything_is_read(tmp_path: Path, stuck_model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with ServeProcess(tmp_path, stuck_model, port=port) as server:
            assert server.wait(5) == 1
            assert f"port {port} on 127.0.0.1 is taken" in server.log
            assert "Traceback" not in server.log


def test_while_it_loads_it_says_so_and_can_be_stopped(tmp_path: Path, stuck_model: Path) -> None:
    with ServeProcess(tmp_path, stuck_model) as server:
        deadline = time.monotonic() + 10
        while server.health() is None:
            assert time.monotonic() < deadline
        for method, path in (("GET", "/health"), ("GET", "/v1/models"), ("POST", "/v1/chat/completions")):
            response = server.http.request(method, path)
            assert (response.status_code, response.json()["error"]["code"]) == (503, "loading")
        children = server.children()
        assert children
        server.process.terminate()
        assert server.wait(5) == 0
        assert_gone(server, children)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), "there is no such file"),
        (("--block-size", "17"), "--block-size must be a multiple of 16"),
        (("--host", "203.0.113.1"), "--host 203.0.113.1 is not an address of this machine"),
        (("--api-key", ""), "--api-key must be one or more visible ASCII characters"),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(
    tmp_path: Path, flags: tuple[str, ...], message: str
) -> None:
    with ServeProcess(tmp_path, tmp_path / "nothing.gguf", *flags) as server:
        assert server.wait(10) == 1
        assert message in server.log
        assert "Traceback" not in server.log


@pytest.mark.parametrize("value", ["", " "])
def test_a_variable_without_a_key_opens_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv("ROOFTREE_API_KEY", value)
    with ServeProcess(tmp_path, tmp_path / "nothing.gguf") as server:
        assert server.wait(10) == 1
        assert "$ROOFTREE_API_KEY is set, but empty" in server.log


def test_sigterm_lets_running_answers_end(tmp_path: Path, model: Path) -> None:
    port = free_port()
    for _ in range(2):  # the second time on the same port, at once
        with ServeProcess(tmp_path, model, *SMALL, port=port) as server:
            server.wait_ready()
            streams = [Stream(server, max_tokens=1500) for _ in range(2)]
            children = server.children()
            server.process.terminate()
            deadline = time.monotonic() + 5
            while server.health() == 200:
                assert time.monotonic() < deadline
            refused = server.http.post("/v1/completions", json=ANSWER)
            assert (refused.status_code, refused.headers["connection"]) == (503, "close")
            assert refused.json()["error"]["code"] == "shutting_down"
            for stream in streams:
                *_, last, done = stream.result()
                assert json.loads(last)["choices"][0]["finish_reason"] == "length"
                assert done == "[DONE]"
            assert server.wait(5) == 0
            assert_gone(server, children)


@pytest.mark.parametrize("how", ["timeout", "second signal"])
def test_what_does_not_end_in_time_is_cut_off_with_an_error(tmp_path: Path, model: Path, how: str) -> None:
    timeout = "0.2" if how == "timeout" else "60"
    with ServeProcess(tmp_path, model, *SMALL, "--shutdown-timeout", timeout) as server:
        server.wait_ready()
        stream = Stream(server)
        server.process.terminate()
        if how == "second signal":
            while server.health() == 200:
                pass
            server.process.send_signal(signal.SIGINT)
        assert json.loads(stream.result()[-1])["error"]["code"] == "shutting_down"
        assert server.wait(5) == 0


def test_more_connections_than_files_hold_up_nobody(tmp_path: Path, model: Path) -> None:
    limit = ("prlimit", "--nofile=128:128")
    with ServeProcess(tmp_path, model, *SMALL, prefix=limit).wait_ready() as server:
        many = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(300)]
        assert server.health() == 200
        for connection in many:
            connection.close()
        assert server.health() == 200
        assert httpx.get(f"{server.url}/health", timeout=10).status_code == 200
        assert server.log.count("out of system resource") < 1000


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", ">&- 2>&-"])
def test_a_server_that_nobody_listens_to_serves(tmp_path: Path, model: Path, redirection: str) -> None:
    prefix = ("sh", "-c", f'exec "$@" {redirection}', "sh")
    with ServeProcess(tmp_path, model, *SMALL, prefix=prefix).wait_ready() as server:
        assert server.http.post("/v1/completions", json=ANSWER).status_code == 200
        assert server.http.post("/nowhere").status_code == 404
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0


def test_long_texts_share_few_threads(tmp_path: Path, model: Path) -> None:
    with ServeProcess(tmp_path, model, *SMALL).wait_ready() as server:
        process = psutil.Process(server.process.pid)

        def tokenize(_: int) -> int:
            return httpx.post(f"{server.url}/tokenize", json={"prompt": "z" * 60_000}, timeout=30).status_code

        assert tokenize(0) == 200  # the tokenizer's own threads are there now, and one of those four
        before = process.num_threads()
        with ThreadPoolExecutor(16) as clients:
            assert set(clients.map(tokenize, range(64))) == {200}
        assert process.num_threads() - before <= 3


def test_a_dead_engine_ends_streams_and_the_process(tmp_path: Path, model: Path) -> None:
    with ServeProcess(tmp_path, model, *SMALL) as server:
        server.wait_ready()
        stream = Stream(server)
        (engine,) = server.children()
        engine.kill()
        assert json.loads(stream.result()[-1])["error"]["code"] == "engine_dead"
        assert server.wait(5) == 1
        assert "the engine died" in server.log


def test_a_server_that_is_killed_takes_its_engine_along(tmp_path: Path, model: Path) -> None:
    with ServeProcess(tmp_path, model, *SMALL) as server:
        server.wait_ready()
        children = server.children()
        server.process.kill()
        server.wait(5)
        assert_gone(server, children)


def test_the_listening_socket() -> None:
    with listen("127.0.0.1", 0) as listener:
        assert address_of(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"
        # Without the number asyncio would leave Nagle's delay on, and each answer would take 40 ms more.
        assert listener.proto == socket.IPPROTO_TCP
        with pytest.raises(ConfigError, match="is taken"):
            listen("127.0.0.1", listener.getsockname()[1])
    with pytest.raises(ConfigError, match=r"--host nowhere\.invalid"):
        listen("nowhere.invalid", 0)


def test_a_download_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # An index that takes the connection and never answers.
    with socket.create_server(("127.0.0.1", 0)) as index:
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{index.getsockname()[1]}/")
        monkeypatch.setenv("ROOFTREE_CACHE", str(tmp_path / "cache"))
        with ServeProcess(tmp_path, "smollm2") as server:
            index.settimeout(20)
            connection, _ = index.accept()
            with connection:
                response = server.http.get("/v1/models")
                assert (response.status_code, response.json()["error"]["code"]) == (503, "loading")
                children = server.children()
                assert children
                server.process.terminate()
                assert server.wait(5) == 0
                assert_gone(server, children)
            assert "Traceback" not in server.log
