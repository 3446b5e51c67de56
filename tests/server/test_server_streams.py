"""Answers, whole and streamed: the same content, in the shapes that OpenAI's own client reads."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from fake_llm import FakeLLM
from server_rig import RunningServer, running_server

from rooftree.server.config import ServerConfig

MESSAGES = [{"role": "user", "content": "hi"}]
ASKED = {"/v1/chat/completions": {"messages": MESSAGES}, "/v1/completions": {"prompt": "hi"}}
TEXT = "Hello world! é😀"


def events(server: RunningServer, route: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream that ends as it should."""
    with server.http.stream("POST", route, json=body | {"stream": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        raw = response.read()
    *lines, done, rest = raw.split(b"\n\n")
    assert (done, rest) == (b"data: [DONE]", b"")
    assert all(line.startswith(b"data: ") for line in lines)
    return [json.loads(line[6:].decode("utf-8", "strict")) for line in lines]


def text_of(choice: dict[str, Any]) -> str:
    if "delta" in choice:
        return choice["delta"].get("content") or ""
    return choice["message"]["content"] if "message" in choice else choice["text"]


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=10) as client:
        yield client


@pytest.mark.parametrize("route", ASKED)
@pytest.mark.parametrize("max_tokens", range(1, 9))
def test_a_stream_joins_to_the_whole_answer(server: RunningServer, route: str, max_tokens: int) -> None:
    body = ASKED[route] | {"max_tokens": max_tokens, "n": 2}
    whole = server.http.post(route, json=body).json()
    parts = events(server, route, body | {"stream_options": {"include_usage": True}})
    for index in range(2):
        choices = [c for part in parts for c in part["choices"] if c["index"] == index]
        assert "".join(map(text_of, choices)) == text_of(whole["choices"][index])
        assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["length"]
        assert choices[-1]["finish_reason"] == whole["choices"][index]["finish_reason"]
    assert [part["usage"] for part in parts] == [None] * (len(parts) - 1) + [whole["usage"]]
    assert parts[-1]["choices"] == []
    assert whole["usage"]["completion_tokens"] == 2 * max_tokens
    assert len({part["id"] for part in parts}) == 1


def test_a_chat_stream_has_the_chunks_of_openai(server: RunningServer) -> None:
    parts = events(server, "/v1/chat/completions", ASKED["/v1/chat/completions"] | {"max_tokens": 1})
    shared = {key: parts[0][key] for key in ("id", "created")}
    assert shared["id"].startswith("chatcmpl-")
    shared |= {"object": "chat.completion.chunk", "model": "tiny"}
    choice = {"index": 0, "logprobs": None, "finish_reason": None}
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, {"content": "Hel"}]
    assert parts[:2] == [shared | {"choices": [choice | {"delta": delta}]} for delta in deltas]
    assert parts[2:] == [shared | {"choices": [choice | {"delta": {}, "finish_reason": "length"}]}]


def test_several_prompts_number_their_choices_through(server: RunningServer) -> None:
    body = {"prompt": ["a", "bc", "def"], "n": 2, "max_tokens": 3}
    whole = server.http.post("/v1/completions", json=body).json()
    assert [choice["index"] for choice in whole["choices"]] == list(range(6))
    assert whole["usage"]["prompt_tokens"] == 2 + 3 + 4
    assert whole["usage"]["prompt_tokens_details"]["cached_tokens"] == 1 + 1 + 2
    assert whole["usage"]["completion_tokens"] == 18
    parts = events(server, "/v1/completions", body)
    ends = [c["index"] for part in parts for c in part["choices"] if c["finish_reason"]]
    assert sorted(ends) == list(range(6))


@pytest.mark.parametrize("prompt", ["hé", [104, 105], ["a", "b"], [[104], [105, 106]]])
def test_every_kind_of_prompt_reaches_the_engine(server: RunningServer, prompt: Any) -> None:
    server.llm.prompts.clear()
    assert server.http.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1}).status_code == 200
    many = prompt if isinstance(prompt[0], list) or prompt == ["a", "b"] else [prompt]
    expected = [[256, *one.encode()] if isinstance(one, str) else one for one in many]
    assert sorted(server.llm.prompts) == sorted(expected)


def test_one_bad_prompt_of_several_refuses_them_all(server: RunningServer) -> None:
    response = server.http.post("/v1/completions", json={"prompt": ["a", "b" * 1000, "c"], "max_tokens": 5})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert not server.llm.running


@pytest.mark.parametrize("stream", [True, False])
def test_prompts_that_never_find_room_together_are_refused_before_any_runs(
    server: RunningServer, stream: bool
) -> None:
    server.llm.seen.clear()
    body = {"prompt": ["a"] * 501, "n": 2, "max_tokens": 1, "stream": stream}
    response = server.http.post("/v1/completions", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "n")
    assert server.llm.seen == []


def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized(server: RunningServer) -> None:
    text, before = "a" * 100_000, server.llm.tokenizer.encoded
    messages = [{"role": "user", "content": text}]
    for route, body in [
        ("/v1/chat/completions", {"messages": messages}),
        ("/v1/chat/completions", {"messages": messages, "stream": True}),
        ("/tokenize", {"messages": messages}),
        ("/tokenize", {"prompt": text}),
    ]:
        response = server.http.post(route, json=body)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
        assert f"context window is {server.llm.max_model_len} tokens" in error["message"]
    assert server.llm.tokenizer.encoded == before


def test_messages_reach_the_template_whole(server: RunningServer) -> None:
    messages = [
        {"role": "system", "content": "S1"},
        {"role": "user", "content": [{"type": "text", "text": "U1"}, {"type": "text", "text": "U2"}]},
        {"role": "assistant", "content": None, "refusal": None},
        {"role": "assistant", "content": "A1", "tool_calls": []},
    ]
    server.llm.prompts.clear()
    body = {"messages": messages, "max_tokens": 1}
    assert server.http.post("/v1/chat/completions", json=body).status_code == 200
    (prompt,) = server.llm.prompts
    text = bytes(prompt).decode()
    for marker in ("S1", "U1", "U2", "A1"):
        assert text.count(marker) == 1


def test_parameters_reach_the_engine(server: RunningServer) -> None:
    body = {
        "prompt": "hi",
        "max_completion_tokens": 4,
        "min_tokens": 1,
        "temperature": 0,
        "top_p": 0.5,
        "top_k": 3,
        "min_p": 0.25,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "repetition_penalty": 1.5,
        "logit_bias": {"5": -100},
        "seed": -3,
        "stop": "zz",
        "stop_token_ids": [7],
        "ignore_eos": True,
        "logprobs": 2,
        "n": 2,
    }
    assert server.http.post("/v1/completions", json=body).status_code == 200
    params = server.llm.seen[-1]
    assert params.max_tokens == 4
    assert params.logit_bias == {5: -100.0}
    assert (params.stop, params.stop_token_ids, params.logprobs) == (("zz",), (7,), 2)
    for name in ("min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "ignore_eos", "n"):
        assert getattr(params, name) == body[name]
    for name in ("presence_penalty", "frequency_penalty", "repetition_penalty"):
        assert getattr(params, name) == body[name]


@pytest.mark.parametrize(("choice", "expected"), [("auto", 0.25), ("none", 1.0)])
def test_a_models_sampling_defaults_apply_where_the_request_is_silent(choice: Any, expected: float) -> None:
    llm = FakeLLM(generation_defaults={"temperature": 0.25, "max_tokens": 1})
    with running_server(llm, ServerConfig(generation_config=choice)) as server:
        assert server.http.post("/v1/completions", json={"prompt": "hi"}).status_code == 200
        server.http.post("/v1/completions", json={"prompt": "hi", "temperature": 0.75})
    assert [params.temperature for params in llm.seen] == [expected, 0.75]
    assert llm.seen[0].max_tokens is None


def test_chat_logprobs(server: RunningServer) -> None:
    body = ASKED["/v1/chat/completions"] | {"max_tokens": 7, "logprobs": True, "top_logprobs": 2}
    whole = server.http.post("/v1/chat/completions", json=body).json()["choices"][0]["logprobs"]["content"]
    parts = events(server, "/v1/chat/completions", body)
    streamed = [
        position
        for part in parts
        for choice in part["choices"]
        if choice["logprobs"]
        for position in choice["logprobs"]["content"]
    ]
    assert streamed == whole
    assert bytes(byte for position in whole for byte in position["bytes"]).decode() == TEXT
    assert [top["token"] for top in whole[0]["top_logprobs"]] == ["a", "b"]
    without = server.http.post("/v1/chat/completions", json=body | {"logprobs": False, "top_logprobs": 0})
    assert without.json()["choices"][0]["logprobs"] is None


def test_completion_logprobs(server: RunningServer) -> None:
    body = {"prompt": "hi", "max_tokens": 7, "logprobs": 2}
    choice = server.http.post("/v1/completions", json=body).json()["choices"][0]
    logprobs = choice["logprobs"]
    assert {len(values) for values in logprobs.values()} == {7}
    for offset, token in zip(logprobs["text_offset"], logprobs["tokens"], strict=True):
        assert choice["text"][offset:].startswith(token)
    assert logprobs["top_logprobs"][0] == {"a": -1.0, "b": -2.0, "Hel": -0.5}
    joined: dict[str, list[Any]] = {key: [] for key in logprobs}
    for part in events(server, "/v1/completions", body):
        for key, values in part["choices"][0]["logprobs"].items():
            joined[key] += values
    assert joined == logprobs


def test_an_engine_that_dies_ends_streams_in_an_error_without_done() -> None:
    with running_server(FakeLLM(dies_after=2), ServerConfig()) as server:
        for route, asked in ASKED.items():
            response = server.http.post(route, json=asked | {"max_tokens": 5})
            assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_dead")
            raw = server.http.post(route, json=asked | {"max_tokens": 5, "stream": True}).text
            last = raw.strip().split("\n\n")[-1]
            assert json.loads(last.removeprefix("data: "))["error"]["code"] == "engine_dead"
            assert "[DONE]" not in raw


def test_the_official_client_chats(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_completion_tokens=7, logprobs=True, extra_body={"top_k": 4}
    )
    assert answer.choices[0].message.content == TEXT
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].logprobs.content[0].token == "Hel"
    assert answer.usage.prompt_tokens_details.cached_tokens == answer.usage.prompt_tokens // 2
    again = [*MESSAGES, answer.choices[0].message, *MESSAGES]
    assert client.chat.completions.create(model="tiny", messages=again, max_tokens=1).usage.prompt_tokens > 30


def test_the_official_client_streams_a_chat(client: openai.OpenAI) -> None:
    options = {"include_usage": True}
    stream = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=7, stream=True, stream_options=options
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == TEXT
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage.completion_tokens == 7


def test_the_official_client_completes(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="tiny", prompt="hi", max_tokens=7, logprobs=1)
    assert whole.choices[0].text == TEXT
    assert len(whole.choices[0].logprobs.tokens) == 7
    stream = client.completions.create(model="tiny", prompt="hi", max_tokens=7, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == TEXT


def test_the_official_client_lists_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["tiny", "other/name"]
    assert client.models.retrieve("other/name").id == "other/name"
    with pytest.raises(openai.NotFoundError, match="not served here"):
        client.models.retrieve("gpt-x")


def test_the_official_client_sees_errors_as_its_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.chat.completions.create(model="tiny", messages=MESSAGES, temperature=-1)
    with pytest.raises(openai.NotFoundError, match="served: 'tiny', 'other/name'"):
        client.completions.create(model="gpt-x", prompt="hi")


def test_a_request_need_not_name_the_model(server: RunningServer) -> None:
    answer = server.http.post("/v1/completions", json={"prompt": "hi", "max_tokens": 1}).json()
    assert answer["model"] == "tiny"
    named = server.http.post("/v1/completions", json={"model": "other/name", "prompt": "hi", "max_tokens": 1})
    assert named.json()["model"] == "other/name"
