"""Connections of careless and hostile clients: what is below a request."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from fake_llm import FakeLLM
from server_rig import RunningServer, running_server

from rooftree.server.config import ServerConfig
from rooftree.server.http_protocol import MAX_HEAD_BYTES, MAX_PIPELINED


def request(body: dict[str, Any] | None = None, path: str = "/v1/completions", *headers: str) -> bytes:
    """A GET, or a POST of ``body``."""
    data = b"" if body is None else json.dumps(body).encode()
    lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", "Host: x", *headers]
    if body is not None:
        lines.append(f"Content-Length: {len(data)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


HEALTH = request(None, "/health", "Connection: close")
SHORT = {"prompt": "hi", "max_tokens": 2}


def send(connection: socket.socket, data: bytes) -> None:
    """Send as much as the server takes."""
    with contextlib.suppress(ConnectionError):
        connection.sendall(data)


def read_all(connection: socket.socket) -> bytes:
    """Everything until the server closes; a timeout is a failure."""
    raw = b""
    with contextlib.suppress(ConnectionResetError):
        while part := connection.recv(65536):
            raw += part
    return raw


def exchange(server: RunningServer, data: bytes) -> bytes:
    """All that the server answers to ``data`` until it closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        send(connection, data)
        return read_all(connection)


def refusal(raw: bytes, status: int) -> dict[str, Any]:
    head, _, body = raw.partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"application/json" in head
    error: dict[str, Any] = json.loads(body)["error"]
    return error


def check_alive(server: RunningServer) -> None:
    answer = server.http.post("/v1/completions", json=SHORT)
    assert answer.json()["choices"][0]["text"] == "Hello"


@pytest.mark.parametrize(
    "raw",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"NOSUCH /health HTTP/1.1\r\n\r\n",
        b"GET http://host HTTP/1.1\r\nHost: host\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}{}\r\n",
    ],
)
def test_what_is_not_http_is_refused_with_an_error_object(server: RunningServer, raw: bytes) -> None:
    assert refusal(exchange(server, raw), 400)["code"] == "invalid_http"
    check_alive(server)


ENDLESS = {
    "header": (b"GET /health HTTP/1.1\r\nHost: x\r\nX-A: ", b"a" * 4096),
    "headers": (b"GET /health HTTP/1.1\r\nHost: x\r\n", b"X-A: aaaaaaaa\r\n" * 256),
    "path": (b"GET /", b"a" * 4096),
    "empty lines": (b"", b"\r\n" * 2048),
    "trailers": (
        b"POST /nowhere HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n",
        b"X-A: aaaaaaaa\r\n" * 256,
    ),
    "chunk extension": (
        b"POST /nowhere HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2;x=",
        b"a" * 4096,
    ),
}


@pytest.mark.parametrize("what", ENDLESS)
def test_nothing_endless_is_swallowed(server: RunningServer, what: str) -> None:
    begin, more = ENDLESS[what]
    with socket.socket() as connection:
        # Else the system's buffers grow to megabytes, which they take even where no one reads any more.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MAX_HEAD_BYTES)
        connection.settimeout(10)
        connection.connect(("127.0.0.1", server.port))
        send(connection, begin)
        sent = 0
        try:
            while sent < 64 * MAX_HEAD_BYTES:
                connection.sendall(more)
                sent += len(more)
        except ConnectionError:
            pass
        else:
            pytest.fail(f"{sent} bytes were taken")
    check_alive(server)


def test_a_head_too_large_is_refused_with_its_limit(server: RunningServer) -> None:
    # With nothing behind it, so that the refusal is not lost in a reset connection.
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nX-A: " + b"a" * (MAX_HEAD_BYTES // 2))
        time.sleep(0.05)
        connection.sendall(b"a" * MAX_HEAD_BYTES)
        error = refusal(read_all(connection), 431)
    assert str(MAX_HEAD_BYTES) in error["message"]
    check_alive(server)


def test_large_bodies_do_not_count_as_heads(server: RunningServer) -> None:
    body = json.dumps(SHORT | {"user": "u" * 4 * MAX_HEAD_BYTES}).encode()

    def pieces() -> Iterator[bytes]:
        for begin in range(0, len(body), 1000):
            yield body[begin : begin + 1000]

    headers = {"Content-Type": "application/json"}
    for content in (body, pieces()):
        assert server.http.post("/v1/completions", content=content, headers=headers).status_code == 200


def test_connections_are_counted_and_those_too_many_are_told_so() -> None:
    with running_server(FakeLLM(), ServerConfig(), max_connections=3) as server:
        check_alive(server)
        held = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(2)]
        for _ in range(3):
            assert refusal(exchange(server, b""), 503)["code"] == "overloaded"
            check_alive(server)
        held.pop().close()
        deadline = time.monotonic() + 5
        while b" 200 " not in exchange(server, HEALTH):
            assert time.monotonic() < deadline, "a place that is free again is not given"
        held.pop().close()


@pytest.mark.parametrize("begin", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: x\r\n"])
def test_a_head_that_never_ends_is_not_waited_for(begin: bytes) -> None:
    with (
        running_server(FakeLLM(), ServerConfig(), keep_alive=1) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection,
    ):
        send(connection, begin)
        assert read_all(connection) == b""
        check_alive(server)


def test_a_body_that_never_comes_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rooftree.server.json_body.BODY_SECONDS", 0.1)
    with (
        running_server(FakeLLM(), ServerConfig(), keep_alive=1) as server,
        socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection,
    ):
        send(connection, request(SHORT)[:-3])
        assert refusal(read_all(connection), 408)["code"] == "request_timeout"
        check_alive(server)


def test_a_slow_answer_outlives_the_wait_for_a_next_head() -> None:
    with running_server(FakeLLM(delay=0.3), ServerConfig(), keep_alive=1) as server:
        # A line break too many behind a body, as some clients send it, is no head that is owed.
        for behind in (b"", b"\r\n"):
            raw = exchange(server, request({"prompt": "hi", "max_tokens": 6}) + behind)
            assert raw.startswith(b"HTTP/1.1 200 ")


def test_requests_sent_together_are_answered_in_order(server: RunningServer) -> None:
    stream = request(SHORT | {"stream": True})
    raw = exchange(server, stream + request(SHORT) + request(None, "/version") + HEALTH)
    assert raw.count(b"HTTP/1.1 200 ") == 4
    places = [raw.index(word) for word in (b"[DONE]", b'"usage"', b'"version"', b'"ready"')]
    assert places == sorted(places)
    raw = exchange(server, request(SHORT) * (3 * MAX_PIPELINED) + HEALTH)
    assert raw.count(b"HTTP/1.1 200 ") == 3 * MAX_PIPELINED + 1


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_requests_behind_is_noticed(stream: bool) -> None:
    llm = FakeLLM(delay=0.02, max_model_len=100_000)
    body = {"prompt": "hi", "stream": stream}
    with running_server(llm, ServerConfig()) as server:
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
                connection.sendall(request(body) + request(body) + HEALTH)
                time.sleep(0.1)
                assert len(llm.running) == 1
            deadline = time.monotonic() + 5
            while llm.running:
                assert time.monotonic() < deadline, "generation goes on without its client"
                time.sleep(0.01)
        assert len(llm.aborted) == len(llm.seen) == 3
        check_alive(server)


@pytest.mark.parametrize("stream", [True, False])
def test_garbage_behind_a_request_never_mixes_with_its_answer(stream: bool) -> None:
    with running_server(FakeLLM(delay=0.05), ServerConfig()) as server:
        raw = exchange(server, request({"prompt": "hi", "max_tokens": 9, "stream": stream}) + b"\0\0\r\n\r\n")
        assert b"invalid_http" not in raw
        assert raw.count(b"HTTP/1.1") <= 1
        check_alive(server)


@pytest.mark.parametrize(
    "headers",
    [
        ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAAP__"),
        ("connection: upgrade", "upgrade: websocket", "Sec-WebSocket-Key: x", "Sec-WebSocket-Version: 13"),
    ],
)
def test_an_offer_to_upgrade_costs_nothing(server: RunningServer, headers: tuple[str, ...]) -> None:
    for body in (SHORT, None):
        path = "/v1/completions" if body else "/health"
        raw = exchange(server, request(body, path, *headers) + HEALTH)
        assert raw.count(b"HTTP/1.1 200 ") == 2, raw
