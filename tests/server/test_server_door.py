"""What stands before the routes: key, request id, readiness; and clients that leave."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import pytest
from fake_llm import FakeLLM
from server_rig import RunningServer, running_server

from rooftree.server.app import ENDPOINTS
from rooftree.server.config import ServerConfig
from rooftree.server.middleware import OPEN_PATHS

KEY = "sk-very-secret"
WRONG_HEADERS: list[list[tuple[bytes, bytes]]] = [
    [],
    [(b"Authorization", b"")],
    [(b"Authorization", b"Bearer")],
    [(b"Authorization", b"Bearer ")],
    [(b"Authorization", b"Bearer wrong")],
    [(b"Authorization", b"Bearer " + KEY.encode()[:-1])],
    [(b"Authorization", b"Bearer " + KEY.encode() + b"x")],
    [(b"Authorization", b"Basic " + KEY.encode())],
    [(b"Authorization", KEY.encode())],
    [(b"Authorization", b"Bearer \xff\xfe\xc3\xa9")],
    [(b"Authorization", b"Bearer " + KEY.encode()), (b"Authorization", b"Bearer wrong")],
    [(b"X-Api-Key", KEY.encode())],
]


def exchange(port: int, method: str, path: str, headers: list[tuple[bytes, bytes]]) -> tuple[int, bytes]:
    """Status and body of a request that httpx would straighten."""
    lines = [f"{method} {path} HTTP/1.1".encode(), b"Host: x", b"Connection: close", b"Content-Length: 0"]
    lines += [name + b": " + value for name, value in headers]
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(b"\r\n".join(lines) + b"\r\n\r\n")
        raw = b""
        while part := connection.recv(65536):
            raw += part
    head, _, body = raw.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


@pytest.fixture(scope="module")
def guarded() -> Any:
    with running_server(FakeLLM(), ServerConfig(api_keys=("other", KEY))) as server:
        yield server


def test_no_route_opens_without_the_key(guarded: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    paths = {path.replace("{id:path}", "tiny") for _, path, _ in ENDPOINTS} - OPEN_PATHS
    assert len(paths) == len(ENDPOINTS) - len(OPEN_PATHS)
    odd = ["//v1/models", "/v1/../v1/models", "/v1/models/", "/health/", "//health", "/v1/../health", "/nope"]
    odd += ["/health%2f", "/HEALTH", "/docs", "/openapi.json"]
    for path in [*paths, *odd]:
        for method in ("GET", "POST", "HEAD", "OPTIONS", "DELETE"):
            for headers in WRONG_HEADERS:
                status, body = exchange(guarded.port, method, path, headers)
                assert status == 401, (method, path, headers)
                assert method == "HEAD" or json.loads(body)["error"]["code"] == "invalid_api_key"
    assert KEY not in caplog.text


@pytest.mark.parametrize("scheme", [b"Bearer ", b"bearer ", b"BEARER  "])
@pytest.mark.parametrize("key", [KEY, "other"])
def test_each_key_opens(guarded: RunningServer, scheme: bytes, key: str) -> None:
    status, _ = exchange(guarded.port, "GET", "/v1/models", [(b"Authorization", scheme + key.encode())])
    assert status == 200


@pytest.mark.parametrize("path", OPEN_PATHS)
def test_health_answers_without_a_key(guarded: RunningServer, path: str) -> None:
    assert exchange(guarded.port, "GET", path, [])[0] == 200


def test_unknown_routes_and_methods_have_error_objects(server: RunningServer) -> None:
    assert server.http.get("/v2/nope").json()["error"]["code"] == "unknown_route"
    assert server.http.post("/v1/chat/completions/").status_code == 404
    wrong = server.http.delete("/v1/completions")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert wrong.json()["error"]["code"] == "method_not_allowed"


def test_the_request_id_comes_back(server: RunningServer) -> None:
    given = server.http.get("/version", headers={"X-Request-Id": "abc-1"})
    assert given.headers["x-request-id"] == "abc-1"
    made = [server.http.get("/nope", headers={"X-Request-Id": bad}) for bad in ("", "a b", "x" * 129)]
    ids = [response.headers["x-request-id"] for response in made]
    assert len(set(ids)) == 3
    assert all(len(one) == 32 for one in ids)


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("LOADING", "loading"),
        ("DRAINING", "shutting_down"),
        ("STOPPED", "shutting_down"),
        ("DEAD", "engine_dead"),
    ],
)
def test_an_engine_that_is_not_ready_answers_503(state: str, code: str) -> None:
    with running_server(FakeLLM(state=state), ServerConfig()) as server:
        asks = [("GET", "/health"), ("GET", "/v1/models"), ("POST", "/v1/completions"), ("POST", "/tokenize")]
        for method, path in asks:
            response = server.http.request(method, path)
            assert (response.status_code, response.json()["error"]["code"]) == (503, code)
        for path in ("/", "/version", "/metrics"):
            assert server.http.get(path).status_code == 200


def test_health_follows_the_heartbeat() -> None:
    llm = FakeLLM()
    with running_server(llm, ServerConfig(heartbeat_timeout=5)) as server:
        for seconds, status in ((0, 200), (4.9, 200), (5.1, 503), (0, 200)):
            llm.seconds_since_heartbeat = seconds
            assert server.http.get("/health").status_code == status
        llm.seconds_since_heartbeat = 9
        response = server.http.post("/v1/completions", json={"prompt": "hi"})
        assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_hung")


def wait_until_nothing_runs(llm: FakeLLM) -> None:
    deadline = time.monotonic() + 5
    while llm.running:
        assert time.monotonic() < deadline, "generation goes on without its client"
        time.sleep(0.01)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("prompt", ["hi", ["a", "b", "c"]])
def test_a_client_that_leaves_ends_its_generation(stream: bool, prompt: Any) -> None:
    llm = FakeLLM(delay=0.02, max_model_len=100_000)
    body = json.dumps({"prompt": prompt, "stream": stream, "n": 2}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with running_server(llm, ServerConfig()) as server:
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
                connection.sendall(head + body)
                if stream:
                    assert connection.recv(1)
                else:
                    time.sleep(0.05)
                assert llm.running
            wait_until_nothing_runs(llm)
        assert len(llm.aborted) == 5 * (1 if prompt == "hi" else 3)
        assert server.http.post("/v1/completions", json={"prompt": "x", "max_tokens": 1}).status_code == 200
        assert len(server.state.inflight) == 0
