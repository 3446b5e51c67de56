"""Bodies as clients get them wrong: each is refused with its reason, and the server goes on."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fake_llm import FakeLLM
from server_rig import RunningServer, running_server

from rooftree.server.config import ServerConfig

CHAT = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "hi"}],
    "stream": False,
    "stream_options": None,
    "n": 1,
    "max_tokens": 3,
    "max_completion_tokens": 3,
    "min_tokens": 0,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "repetition_penalty": 1.1,
    "logit_bias": {"5": 1},
    "seed": 1,
    "stop": ["zzz"],
    "stop_token_ids": [7],
    "ignore_eos": False,
    "logprobs": True,
    "top_logprobs": 1,
    "priority": 0,
    "cache_salt": "a",
    "user": "u",
    "metadata": {"a": "b"},
    "safety_identifier": "s",
    "prompt_cache_key": "k",
}
COMPLETION = {key: value for key, value in CHAT.items() if key not in ("messages", "top_logprobs")}
COMPLETION |= {"prompt": "hi", "logprobs": 1}
WRONG = [None, True, -1, 1.5, "x", [], {}, [[]], {"a": 1}, 10**30, "", ["x", 1]]
ROUTES = {"/v1/chat/completions": CHAT, "/v1/completions": COMPLETION}
TOKENIZE = {"model": "tiny", "prompt": "hi", "messages": None, "add_special_tokens": True}
DETOKENIZE = {"model": "tiny", "tokens": [104, 105]}
JSON_HEADERS = {"Content-Type": "application/json"}


def check_refusal(response: httpx.Response) -> dict[str, Any]:
    assert 400 <= response.status_code < 500, response.text
    error = json.loads(response.content)["error"]
    assert error["message"]
    assert error["type"] == "invalid_request_error"
    return error


def check_alive(server: RunningServer) -> None:
    answer = server.http.post("/v1/completions", json={"prompt": "hi", "max_tokens": 5})
    assert answer.json()["choices"][0]["text"] == "Hello world!"
    assert not server.llm.running


@pytest.mark.parametrize(
    ("route", "good"), [*ROUTES.items(), ("/tokenize", TOKENIZE), ("/detokenize", DETOKENIZE)]
)
def test_any_value_in_any_field_is_served_or_refused(
    server: RunningServer, route: str, good: dict[str, Any]
) -> None:
    assert server.http.post(route, json=good).status_code == 200
    for stream in (False, True):
        for field in good:
            for value in WRONG:
                body = good | ({"stream": stream} if route in ROUTES else {}) | {field: value}
                response = server.http.post(route, json=body)
                if response.status_code != 200:
                    check_refusal(response)
                elif response.headers["content-type"].startswith("text/event-stream"):
                    assert response.text.endswith("data: [DONE]\n\n")
                    assert '"error"' not in response.text
    check_alive(server)


@pytest.mark.parametrize("route", [*ROUTES, "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"[]",
        b'"x"',
        b"7",
        b"null",
        b"{",
        b'{"prompt": "hi"',
        b'{"prompt": "hi"}}',
        b'{"prompt": "hi", "prompt": "ho"}',
        b'{"messages": [{"role": "user", "role": "x", "content": "hi"}]}',
        b'{"prompt": "hi", "temperature": NaN}',
        b'{"prompt": "hi", "temperature": Infinity}',
        b'{"prompt": "hi", "temperature": -Infinity}',
        b'{"prompt": "hi", "temperature": 1e999}',
        b'{"prompt": "hi", "seed": ' + b"9" * 5000 + b"}",
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b"\xef\xbb\xbf{}",
        '{"prompt": "hi"}'.encode("utf-16"),
        b"[" * 100_000,
        b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b"\x00" * 64,
    ],
    ids=range(23),
)
def test_what_is_not_a_json_object_is_refused(server: RunningServer, route: str, body: bytes) -> None:
    check_refusal(server.http.post(route, content=body, headers=JSON_HEADERS))
    check_alive(server)


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "x", ""]
)
def test_another_content_type_is_refused(server: RunningServer, content_type: str) -> None:
    body = json.dumps({"prompt": "hi"}).encode()
    response = server.http.post("/v1/completions", content=body, headers={"Content-Type": content_type})
    assert response.status_code == 415
    check_refusal(response)
    check_alive(server)


@pytest.mark.parametrize("content_type", [None, "application/json; charset=UTF-8", "Application/JSON"])
def test_json_by_any_of_its_names_is_accepted(server: RunningServer, content_type: str | None) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}
    body = json.dumps({"prompt": "hi", "max_tokens": 1}).encode()
    assert server.http.post("/v1/completions", content=body, headers=headers).status_code == 200


def test_a_body_too_large_is_refused_whether_its_size_is_declared_or_not(server: RunningServer) -> None:
    limit = server.state.config.max_body_size
    big = b'{"prompt": "' + b"a" * limit + b'"}'
    declared = server.http.post("/v1/completions", content=big, headers=JSON_HEADERS)
    chunked = server.http.post("/v1/completions", content=iter([big[:100], big[100:]]), headers=JSON_HEADERS)
    for response in (declared, chunked):
        assert response.status_code == 413
        assert str(limit) in check_refusal(response)["message"]
    check_alive(server)


def test_a_long_body_is_read_like_a_short_one(server: RunningServer) -> None:
    body = {"prompt": "hi", "max_tokens": 4, "temperature": 0, "user": "u" * 100_000}
    short, long = (
        server.http.post("/v1/completions", json=body | {"user": user}).json()["choices"]
        for user in ("u", body["user"])
    )
    assert short == long
    unclosed = server.http.post("/v1/completions", content=b"{" + b" " * 100_000, headers=JSON_HEADERS)
    assert check_refusal(unclosed)["code"] == "invalid_json"
    check_alive(server)


def test_many_tokens_have_the_text_that_few_have(server: RunningServer) -> None:
    few, many = (
        server.http.post("/detokenize", json={"tokens": [104, 105] * count}).json()["prompt"]
        for count in (10, 10_000)
    )
    assert many == few * 1000
    wrong = server.http.post("/detokenize", json={"tokens": [104] * 10_000 + [300]})
    assert check_refusal(wrong)["param"] == "tokens"
    check_alive(server)


def test_clients_that_stall_do_not_fill_the_memory() -> None:
    config = ServerConfig(max_body_size=1000)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
    with running_server(FakeLLM(), config) as server, contextlib.ExitStack() as stalled:
        for _ in range(16):
            connection = stalled.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            connection.sendall(head + b" " * 999)
        wait_until(lambda: server.state.bodies.held == 16 * 999)
        refused = server.http.post("/v1/completions", json={"prompt": "hi", "max_tokens": 2})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
        assert refused.headers["Retry-After"] == "1"
        stalled.close()
        wait_until(lambda: server.state.bodies.held == 0)
        check_alive(server)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_client_that_leaves_while_sending_its_body_is_forgotten(server: RunningServer) -> None:
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            connection.sendall(f'{head}Content-Length: 100\r\n\r\n{{"prompt"'.encode())
    check_alive(server)


@pytest.mark.parametrize(
    ("route", "change", "param"),
    [
        ("/v1/completions", {"temperature": "hot"}, "temperature"),
        ("/v1/completions", {"temperature": -1}, "temperature"),
        ("/v1/completions", {"n": 0}, "n"),
        ("/v1/completions", {"n": 1.5}, "n"),
        ("/v1/completions", {"stop": ""}, "stop"),
        ("/v1/completions", {"stop": ["a", 3]}, "stop[1]"),
        ("/v1/completions", {"tempreture": 1}, "tempreture"),
        ("/v1/completions", {"stream_options": {}}, "stream_options"),
        ("/v1/completions", {"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
        ("/v1/completions", {"max_tokens": 3, "max_completion_tokens": 4}, "max_completion_tokens"),
        ("/v1/completions", {"logprobs": 21}, "logprobs"),
        ("/v1/completions", {"logprobs": True}, "logprobs"),
        ("/v1/completions", {"logit_bias": {"x": 1}}, "logit_bias"),
        ("/v1/completions", {"prompt": [1, "a"]}, "prompt"),
        ("/v1/completions", {"prompt": [[]]}, "prompt"),
        ("/v1/completions", {"prompt": []}, "prompt"),
        ("/v1/completions", {"prompt": [10**6]}, "prompt"),
        ("/v1/completions", {"prompt": None}, "prompt"),
        ("/v1/completions", {"prompt": ["a"] * 1025}, "prompt"),
        ("/v1/completions", {"max_tokens": 10**6}, "max_tokens"),
        ("/v1/chat/completions", {"messages": []}, "messages"),
        ("/v1/chat/completions", {"messages": None}, "messages"),
        ("/v1/chat/completions", {"messages": [{"content": "hi"}]}, "messages[0].role"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "text": "hi"}]}, "messages[0].text"),
        ("/v1/chat/completions", {"messages": [{"role": "forbidden", "content": "hi"}]}, "messages"),
        ("/v1/chat/completions", {"top_logprobs": 2}, "top_logprobs"),
        ("/v1/chat/completions", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("/v1/chat/completions", {"logprobs": 2}, "logprobs"),
        ("/tokenize", {"messages": [{"role": "user"}]}, "prompt"),
        ("/detokenize", {"tokens": [300]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
    ],
)
def test_a_refusal_names_the_field(
    server: RunningServer, route: str, change: dict[str, Any], param: str
) -> None:
    good = {
        "/v1/completions": {"prompt": "hi"},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
        "/tokenize": {"prompt": "hi"},
        "/detokenize": {"tokens": [104]},
    }[route]
    response = server.http.post(route, json=good | change)
    error = check_refusal(response)
    assert (response.status_code, error["param"]) == (400, param)
    assert param.split("[")[0].split(".")[-1] in error["message"]
    check_alive(server)


UNSUPPORTED: dict[str, tuple[list[Any], list[Any]]] = {
    "tools": ([[]], [[{"type": "function", "function": {"name": "f"}}]]),
    "tool_choice": (["none", "auto"], ["required", {"type": "function"}]),
    "functions": ([[]], [[{"name": "f"}]]),
    "response_format": ([{"type": "text"}], [{"type": "json_object"}]),
    "modalities": ([["text"]], [["text", "audio"]]),
    "audio": ([], [{"voice": "alloy"}]),
    "prediction": ([], [{"type": "content"}]),
    "store": ([False], [True, 0]),
    "service_tier": (["auto", "default"], ["flex"]),
    "web_search_options": ([], [{}]),
    "reasoning_effort": (["none"], ["high"]),
    "verbosity": (["medium"], ["low"]),
    "parallel_tool_calls": ([True, False], [1]),
    "best_of": ([1], [2, True, 1.0]),
    "echo": ([False], [True]),
}


@pytest.mark.parametrize("field", UNSUPPORTED)
def test_a_field_of_a_missing_feature_passes_only_where_it_asks_for_nothing(
    server: RunningServer, field: str
) -> None:
    off, on = UNSUPPORTED[field]
    good = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    for value in [None, *off]:
        assert server.http.post("/v1/chat/completions", json=good | {field: value}).status_code == 200
    for value in on:
        error = check_refusal(server.http.post("/v1/chat/completions", json=good | {field: value}))
        assert (error["param"], error["code"]) == (field, "unsupported_field")
    check_alive(server)


def test_null_is_the_same_as_absence(server: RunningServer) -> None:
    for route, good in ROUTES.items():
        needed = "messages" if "chat" in route else "prompt"
        body = dict.fromkeys(good) | {needed: good[needed]} | {"max_tokens": 1}
        assert server.http.post(route, json=body).status_code == 200
    assert server.llm.seen[-1].temperature == 1.0
