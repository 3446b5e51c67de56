"""The largest bodies and answers: nobody else waits for them, and what is not needed is refused at once."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fake_llm import TEMPLATE, FakeLLM
from hypothesis import given
from hypothesis import strategies as st
from server_rig import RunningServer, running_server

from rooftree.errors import RequestError
from rooftree.sampling.params import SamplingParams
from rooftree.server import completions, json_body, many_prompts, prompts, requests
from rooftree.server.config import ServerConfig
from rooftree.server.generation import Job, Tally, generate
from rooftree.text.chat_template import ChatTemplate

SIZE = 15 << 20
JSON_HEADERS = {"Content-Type": "application/json"}


def filled(head: str, unit: str, tail: str) -> bytes:
    """A large body: ``unit`` over and over, with commas between."""
    return f"{head}{','.join([unit] * (SIZE // (len(unit) + 1)))}{tail}".encode()


def post(server: RunningServer, route: str, body: bytes) -> httpx.Response:
    return server.http.post(route, content=body, headers=JSON_HEADERS)


def check_alive(server: RunningServer) -> None:
    answer = server.http.post("/v1/completions", json={"prompt": "hi", "max_tokens": 5})
    assert answer.json()["choices"][0]["text"] == "Hello world!"


MESSAGE = '{"messages":[{"role":"user","content":%s}]}'
CALL = '{"messages":[{"role":"user","content":"a"},{"role":"assistant","tool_calls":[%s]}]}'


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/v1/completions", filled('{"prompt":[', "1", "]}")),
        ("/v1/completions", filled('{"prompt":[', "[1,2]", "]}")),
        ("/v1/completions", filled('{"prompt":[', "{}", "]}")),
        ("/v1/completions", filled('{"prompt":[', '"a"', "]}")),
        ("/v1/completions", filled('{"prompt":"a","logit_bias":{', '"1":1', "}}")),
        ("/v1/completions", b'{"prompt":' + b"[" * SIZE),
        ("/v1/chat/completions", filled('{"messages":[', '{"role":"user","content":"a"}', "]}")),
        ("/v1/chat/completions", filled(MESSAGE[:-5] + "[", '{"type":"text","text":""}', "]}]}")),
        ("/detokenize", filled('{"tokens":[', "104", "]}")),
    ],
    ids=range(9),
)
def test_more_values_than_anyone_needs_are_refused_before_they_are_read(
    server: RunningServer, route: str, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(json_body.msgspec.json, "decode", lambda body: pytest.fail("the body was read"))
        patch.setattr(json_body.json, "loads", lambda body, **hook: pytest.fail("the body was read"))
        response = post(server, route, body)
    error = json.loads(response.content)["error"]
    assert (response.status_code, error["code"]) == (413, "request_too_large")
    assert "262144 numbers or texts" in error["message"]
    check_alive(server)


def test_many_prompts_of_many_ids_are_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [[(i * 31 + j) % 256 for j in range(4096)] for i in range(128)]
    lengths: list[int] = []
    read = many_prompts._values
    monkeypatch.setattr(many_prompts, "_values", lambda ids: lengths.append(len(ids)) or read(ids))
    with running_server(FakeLLM(max_model_len=5000), ServerConfig()) as server:
        answer = post(server, "/v1/completions", json.dumps({"prompt": asked, "max_tokens": 1}).encode())
        assert answer.status_code == 200
        assert answer.json()["usage"]["prompt_tokens"] == 128 * 4096
        assert [choice["index"] for choice in answer.json()["choices"]] == list(range(128))
        assert len(lengths) == 128
        check_alive(server)


MANY = b",".join([b"[%b]" % b",".join([b"104"] * 5000)] * 60)


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b'{"prompt":[[%b]]}' % b",".join([b"1"] * 270_000), 413, "a prompt has too many values"),
        (b'{"prompt":[[1],%b]}' % b",".join([b"1"] * 270_000), 413, "the body has too many values"),
        (b'{"prompt":[%b]}' % b",".join([b"[%b1]" % (b"1," * 250)] * 1200), 400, "1200 prompts"),
        (b"[%b]" % MANY, 413, "the body has too many values"),
        (b'{"prompt":[%b],"prompt":"a"}' % MANY, 413, "the body has too many values"),
        (b'{"prompt":"a","prompt":[%b]}' % MANY, 400, "the key 'prompt' appears twice"),
        (b'{"prompt":[%b],"user":"[%b]"}' % (MANY, MANY), 400, "context window"),
        (b'{"user":"[%b]","prompt":[%b]}' % (MANY, MANY), 413, "the body has too many values"),
        (b'{"prompt":[%b,[1,null]]}' % MANY, 400, "prompt[60][1]: Expected 'int'"),
        (b'{"prompt":[%b,[[1]]]}' % MANY, 413, "the body has too many values"),
        (b'{"prompt":[%b,[01]]}' % MANY, 400, "the body is not valid JSON"),
        (b'{"prompt":[%b],"nothing":}' % MANY, 400, "the body is not valid JSON"),
        (b'{"prompt":[%b],"nothing":1}' % MANY, 400, "unknown field 'nothing'"),
        (b'{"prompt":[%b]' % MANY, 400, "the body is not valid JSON"),
        (b'{"prompt":[%b]]}' % MANY, 400, "the body is not valid JSON"),
    ],
    ids=range(15),
)
def test_what_is_wrong_beside_many_ids_is_refused(
    server: RunningServer, body: bytes, status: int, says: str
) -> None:
    response = post(server, "/v1/completions", body)
    error = response.json()["error"]
    assert (response.status_code, says in error["message"]) == (status, True), error
    check_alive(server)


lists_of_ids = st.lists(st.lists(st.integers(-5, 1 << 40), max_size=5), min_size=1, max_size=5)


@given(
    lists_of_ids, st.sampled_from([(",", ":"), (" , ", " : "), (",\n", ":\t")]), st.none() | st.integers(0, 5)
)
def test_prompts_are_cut_out_however_they_are_spelt(
    asked: list[list[int]], separators: tuple[str, str], indent: int | None
) -> None:
    fields = {"user": "a[[1]]", "prompt": asked, "n": 1}
    body = json.dumps(fields, separators=separators, indent=indent).encode()
    rest, found = many_prompts.cut_out_prompts(body)
    assert found == asked
    assert json.loads(rest) == fields | {"prompt": None}


@given(
    st.recursive(
        st.integers() | st.text(alphabet='[],"1'),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    )
)
def test_what_is_not_lists_of_ids_is_left_where_it_is(prompt: Any) -> None:
    body = json.dumps({"prompt": prompt}).encode()
    rest, found = many_prompts.cut_out_prompts(body)
    if found is None:
        assert rest == body
    else:
        assert found == prompt


@pytest.mark.parametrize("unit", ["a ", ",[", '\\"', "\\\\", "\\u00e9", "\U0001f600"])
def test_a_text_of_anything_is_refused_for_its_length_alone(server: RunningServer, unit: str) -> None:
    text = unit * (SIZE // len(unit.encode()))
    for route, body in [("/v1/completions", '{"prompt":%s}'), ("/v1/chat/completions", MESSAGE)]:
        tokenized = server.llm.tokenizer.encoded
        response = post(server, route, (body % f'"{text}"').encode())
        assert (response.status_code, response.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert server.llm.tokenizer.encoded == tokenized
    check_alive(server)


def test_arguments_of_tool_calls_are_measured_together(server: RunningServer) -> None:
    arguments = json.dumps('{"a":[' + ",".join(["[1]"] * 10_000) + "]}")
    call = f'{{"function":{{"name":"f","arguments":{arguments}}}}}'
    response = post(server, "/v1/chat/completions", (CALL % ",".join([call] * 10)).encode())
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (413, "messages")
    assert "what tool calls have as arguments has too many values" in error["message"]
    check_alive(server)


@pytest.mark.parametrize(
    "body",
    [
        MESSAGE % ('"a","' + "x" * SIZE + '":1'),
        '{"messages":[{"role":"' + "x" * SIZE + '"}]}',
        '{"messages":[{"role":"a","content":"a"}],"' + "x" * SIZE + '":1}',
        '{"messages":[{"role":"a","content":"a"}],"model":"' + "x" * SIZE + '"}',
    ],
    ids=range(4),
)
def test_a_refusal_never_quotes_megabytes(server: RunningServer, body: str) -> None:
    response = post(server, "/v1/chat/completions", body.encode())
    assert 400 <= response.status_code < 500
    assert len(response.content) < 5000
    check_alive(server)


class Gate:
    """Work that does not end until the test lets it."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.opened = threading.Event()

    def before(self, work: Callable[..., Any], holds_up: Callable[[Any], bool]) -> Callable[..., Any]:
        """``work``, but once the gate is open where ``holds_up`` says so of its first argument."""

        def wait(first: Any, *arguments: Any, **options: Any) -> Any:
            if holds_up(first):
                self.reached.set()
                assert self.opened.wait(10)
            return work(first, *arguments, **options)

        return wait


def check_others_are_answered(gate: Gate, server: RunningServer, route: str, body: dict[str, Any]) -> None:
    """While a body is held up at a gate, other requests are answered; then it gets its own answer."""
    answers: list[httpx.Response] = []
    sender = threading.Thread(
        target=lambda: answers.append(httpx.post(server.url + route, json=body, timeout=20))
    )
    sender.start()
    try:
        assert gate.reached.wait(10)
        assert server.http.get("/health").status_code == 200
        check_alive(server)
        assert not answers
    finally:
        gate.opened.set()
        sender.join(10)
    assert answers[0].status_code == 200


@pytest.mark.parametrize(
    ("work", "is_long"),
    [("parse_object", lambda body: len(body) > 1000), ("read_request", lambda f: "user" in f)],
)
def test_others_are_answered_while_a_long_body_is_read_and_checked(
    work: str, is_long: Callable[[Any], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    monkeypatch.setattr(requests, work, gate.before(getattr(requests, work), is_long))
    body = {"prompt": "hi", "max_tokens": 1, "user": "u" * 100_000}
    with running_server(FakeLLM(), ServerConfig()) as server:
        check_others_are_answered(gate, server, "/v1/completions", body)


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "a" * 5000}],
        [{"role": "user", "content": "a"}] * 120,
        [{"role": "user", "content": [{"type": "text", "text": "a"}] * 120}],
    ],
    ids=["text", "messages", "parts"],
)
def test_others_are_answered_while_a_long_conversation_is_rendered(
    messages: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    template = ChatTemplate(TEMPLATE, {})
    monkeypatch.setattr(template, "render", gate.before(template.render, bool))
    llm = FakeLLM(chat_template=template, max_model_len=10_000)
    with running_server(llm, ServerConfig()) as server:
        check_others_are_answered(
            gate, server, "/v1/chat/completions", {"messages": messages, "max_tokens": 1}
        )


def test_others_are_answered_while_the_logprobs_of_a_long_answer_are_spelt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate()
    spell = gate.before(completions.completion_logprobs, lambda positions: len(positions) > 1)
    monkeypatch.setattr(completions, "completion_logprobs", spell)
    with running_server(FakeLLM(), ServerConfig()) as server:
        body = {"prompt": "hi", "max_tokens": 100, "logprobs": 1}
        check_others_are_answered(gate, server, "/v1/completions", body)


def test_others_have_their_turn_while_very_many_prompts_are_started() -> None:
    class Counting(FakeLLM):
        async def generate(self, *arguments: Any, **options: Any) -> Any:
            self.started += 1
            async for output in super().generate(*arguments, **options):
                yield output

        started = 0

    async def test() -> None:
        llm, seen = Counting(room=prompts.MAX_PROMPTS), []
        job = Job("job", ["hi"] * prompts.MAX_PROMPTS, SamplingParams(max_tokens=1))

        async def run() -> None:
            async for _ in generate(llm, job, Tally()):
                pass

        running = asyncio.create_task(run())
        while llm.started < prompts.MAX_PROMPTS:
            await asyncio.sleep(0)
            seen.append(llm.started)
        await running
        assert max(later - earlier for earlier, later in zip([0, *seen], seen, strict=False)) <= 2

    asyncio.run(asyncio.wait_for(test(), 30))


def test_large_requests_that_come_together_do_not_refuse_each_other() -> None:
    class Small(FakeLLM):
        def check_room(self, num_choices: int) -> None:
            if len(self.running) + num_choices > self.room:
                raise RequestError("no room now", status=503)

        async def generate(self, *arguments: Any, **options: Any) -> Any:
            self.check_room(1)
            async for output in super().generate(*arguments, **options):
                yield output

    async def test() -> None:
        llm, starting = Small(room=8, delay=0.01), asyncio.Lock()

        async def run(name: str) -> int:
            job = Job(name, ["hi"] * 5, SamplingParams(max_tokens=3), starting=starting)
            return len([outputs async for outputs in generate(llm, job, Tally())])

        first, *others = await asyncio.gather(*map(run, "abc"), return_exceptions=True)
        assert first == 15
        assert all(isinstance(other, RequestError) for other in others)
        assert llm.aborted == []
        assert not llm.running

    asyncio.run(asyncio.wait_for(test(), 30))
