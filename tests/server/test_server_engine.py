"""The whole of it: HTTP, engine process and a tiny model whose every answer is known beforehand."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from server_rig import WALKS, ServeProcess, write_walker

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
KEY = "sk-only-for-this-test"
ALPHA = "alpha END beta €."


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_walker(tmp_path_factory.mktemp("walker") / "stored")


def start(folder: Path, model: Path, *flags: str) -> Iterator[ServeProcess]:
    flags = ("--threads", "1", "--api-key", KEY, "--served-model-name", "walker", *flags)
    with ServeProcess(folder, model, *flags) as server:
        server.http.headers["Authorization"] = f"Bearer {KEY}"
        yield server.wait_ready()
        assert KEY not in server.log
        assert "Traceback" not in server.log


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[ServeProcess]:
    yield from start(tmp_path_factory.mktemp("roomy"), model, "--kv-cache-memory", "32MiB")


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[ServeProcess]:
    """A window of 64 tokens and a pool of 8 blocks of 16: two sequences of full length."""
    flags = ("--max-model-len", "64", "--kv-cache-memory", str(8 * 16 * 256), "--kv-watermark", "0")
    yield from start(tmp_path_factory.mktemp("narrow"), model, *flags)


def ask(
    server: ServeProcess, route: str, prompt: str, stream: bool, **change: Any
) -> tuple[str, str | None, int]:
    """Text, finish reason and completion tokens of an answer; a stream is checked for its form."""
    body: dict[str, Any] = {"temperature": 0, "stream": stream} | change
    body |= {"messages": [{"role": "user", "content": prompt}]} if route == CHAT else {"prompt": prompt}
    if stream:
        body["stream_options"] = {"include_usage": True}
    response = server.http.post(route, json=body)
    assert response.status_code == 200, response.text
    if not stream:
        choice = response.json()["choices"][0]
        text = choice["text"] if route == COMPLETION else choice["message"]["content"]
        return text, choice["finish_reason"], response.json()["usage"]["completion_tokens"]
    *lines, done, _ = response.content.split(b"\n\n")
    assert done == b"data: [DONE]"
    *parts, last = [json.loads(line.removeprefix(b"data: ").decode("utf-8", "strict")) for line in lines]
    choices = [part["choices"][0] for part in parts]
    deltas = [c["text"] if route == COMPLETION else c["delta"].get("content", "") for c in choices]
    whole = "".join(deltas)
    assert all("\ufffd" not in delta for delta in deltas) or "\ufffd" in whole
    return whole, choices[-1]["finish_reason"], last["usage"]["completion_tokens"]


def test_a_served_name_stands_for_the_model_and_its_own_name_is_told(roomy: ServeProcess) -> None:
    (card,) = roomy.http.get("/v1/models").json()["data"]
    assert (card["id"], card["root"]) == ("walker", "stored")
    assert roomy.http.get("/v1/models/stored").status_code == 404


def all_ways(server: ServeProcess, prompt: str, **change: Any) -> tuple[str, str | None, int]:
    """The answer, the same on both routes, streamed and not."""
    answers = {
        ask(server, route, prompt, stream, **change)
        for route in (CHAT, COMPLETION)
        for stream in (False, True)
    }
    assert len(answers) == 1, answers
    return answers.pop()


def scrape(server: ServeProcess) -> dict[tuple[str, ...], float]:
    """All samples under ``rooftree:``, by name and the labels that are not the same everywhere."""
    text = server.http.get("/metrics").text
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = [v for k, v in sorted(sample.labels.items()) if k not in ("model_name", "engine")]
            if sample.name.startswith("rooftree:"):
                found[sample.name.removeprefix("rooftree:"), *labels] = sample.value
    return found


def at_rest(server: ServeProcess) -> dict[tuple[str, ...], float]:
    """Metrics once nothing runs and all blocks are back."""
    deadline = time.monotonic() + 5
    while True:
        metrics = scrape(server)
        gauges = [metrics[name] for name in (("num_requests_running",), ("num_requests_waiting",))]
        if gauges == [0, 0] and metrics["kv_cache_blocks", "owned"] == 0:
            assert metrics["kv_cache_usage_perc",] == 0
            return metrics
        assert time.monotonic() < deadline, metrics
        time.sleep(0.02)


@pytest.mark.parametrize("start_letter", WALKS)
def test_characters_cut_between_tokens_are_never_torn(roomy: ServeProcess, start_letter: str) -> None:
    walk = WALKS[start_letter]
    for max_tokens in range(1, len(walk) + 1):
        text, reason, tokens = all_ways(roomy, start_letter, max_tokens=max_tokens)
        assert text == b"".join(walk[:max_tokens]).decode(errors="replace")
        assert (reason, tokens) == ("length", max_tokens)
    text, reason, _ = all_ways(roomy, start_letter)
    assert (text, reason) == (b"".join(walk).decode(), "stop")


@pytest.mark.parametrize("wrong", ["z" * 9000, "z" * 9_000_000, "", [512], []])
def test_one_wrong_prompt_of_several_is_refused_before_the_stream_begins(
    roomy: ServeProcess, wrong: Any
) -> None:
    for prompts in (["z", wrong], [wrong, "z"], ["z"] * 20 + [wrong]):
        response = roomy.http.post(
            "/v1/completions", json={"prompt": prompts, "max_tokens": 50, "stream": True}
        )
        assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt"), response.text


def test_two_streams_share_no_state(roomy: ServeProcess) -> None:
    with ThreadPoolExecutor(8) as pool:
        letters = [*WALKS] * 8
        answers = pool.map(lambda letter: ask(roomy, CHAT, letter, True)[0], letters)
        assert list(answers) == [b"".join(WALKS[letter]).decode() for letter in letters]


def test_logprobs_spell_the_text(roomy: ServeProcess) -> None:
    body = {"messages": [{"role": "user", "content": "\n"}], "temperature": 0, "logprobs": True}
    for stream in (False, True):
        response = roomy.http.post(CHAT, json=body | {"stream": stream, "top_logprobs": 2})
        raw = response.text.split("\n\n") if stream else [response.text]
        events = [json.loads(line.removeprefix("data: ")) for line in raw if "logprobs" in line]
        choices = [choice for event in events for choice in event["choices"] if choice["logprobs"]]
        positions = [position for choice in choices for position in choice["logprobs"]["content"]]
        spelt = b"".join(bytes(position["bytes"]) for position in positions)
        assert spelt.startswith(b"".join(WALKS["\n"]))
        assert all(p["top_logprobs"][0]["logprob"] == p["logprob"] <= 0 for p in positions)


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ("END", "alpha "),
        (["zzz", "END"], "alpha "),
        ("a E", "alph"),
        ("alpha END beta €.", ""),
        ("€", "alpha END beta "),
        ("beta €", "alpha END "),
        ("END!", ALPHA),
        ("beta €.x", ALPHA),
        (ALPHA + "and more", ALPHA),
    ],
)
def test_stop_strings_match_across_tokens_and_lose_nothing(
    roomy: ServeProcess, stop: Any, expected: str
) -> None:
    assert all_ways(roomy, "\t", stop=stop)[:2] == (expected, "stop")
    for max_tokens in range(1, len(WALKS["\t"])):
        so_far = b"".join(WALKS["\t"][:max_tokens]).decode(errors="replace")
        text, reason, _ = all_ways(roomy, "\t", stop=stop, max_tokens=max_tokens)
        stops = [stop] if isinstance(stop, str) else stop
        cut = [so_far.split(each)[0] for each in stops if each in so_far]
        assert (text, reason) == ((cut[0], "stop") if cut else (so_far, "length"))


@pytest.mark.parametrize("route", [CHAT, COMPLETION])
@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_the_edge_of_the_context_window(narrow: ServeProcess, route: str, field: str) -> None:
    for prompt_tokens in range(61, 66):
        for max_tokens in (None, 1, 2, 3, 4):
            fits = prompt_tokens + (max_tokens or 1) <= 64
            prompt = "z" * prompt_tokens
            if fits:
                expected = 64 - prompt_tokens if max_tokens is None else max_tokens
                for stream in (False, True):
                    _, reason, tokens = ask(narrow, route, prompt, stream, **{field: max_tokens})
                    assert (tokens, reason) == (expected, "length")
                continue
            body: dict[str, Any] = {"prompt": prompt, field: max_tokens}
            if route == CHAT:
                body = {"messages": [{"role": "user", "content": prompt}], field: max_tokens}
            response = narrow.http.post(route, json=body)
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
            numbers = set(map(int, re.findall(r"\d+", error["message"])))
            assert {prompt_tokens, 64} | ({max_tokens} if max_tokens else set()) <= numbers
    assert ask(narrow, route, "\t", False)[0] == ALPHA


def test_a_key_is_asked_for_by_the_real_server(roomy: ServeProcess) -> None:
    for headers in ({"Authorization": "Bearer wrong"}, {"Authorization": ""}):
        response = roomy.http.post(CHAT, json={"messages": []}, headers=headers)
        assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
    assert roomy.http.get("/health", headers={"Authorization": ""}).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_gives_everything_back(roomy: ServeProcess, stream: bool) -> None:
    before = at_rest(roomy)
    body = json.dumps({"prompt": "z", "max_tokens": 8000, "stream": stream, "n": 2}).encode()
    head = f"POST {COMPLETION} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", roomy.port), timeout=10) as connection:
            connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            if stream:
                assert connection.recv(1)
            else:
                time.sleep(0.05)
    after = at_rest(roomy)
    assert after["request_success_total", "abort"] - before["request_success_total", "abort"] == 40
    all_blocks = sum(after["kv_cache_blocks", state] for state in ("free", "cached"))
    assert all_blocks == sum(before["kv_cache_blocks", state] for state in ("free", "cached"))
    assert all_ways(roomy, "\t")[0] == ALPHA
    assert at_rest(roomy)["generation_tokens_total",] == after["generation_tokens_total",] + 4 * 8


def test_metrics_add_up(narrow: ServeProcess) -> None:
    before = at_rest(narrow)
    stop_scraping, falls = threading.Event(), []

    def watch() -> None:
        last = before
        while not stop_scraping.is_set():
            now = scrape(narrow)
            falls.extend(
                key
                for key in last
                if key[0].endswith(("_total", "_count", "_bucket")) and now[key] < last[key]
            )
            last = now

    watcher = threading.Thread(target=watch)
    watcher.start()
    usages = []

    def post(**body: Any) -> None:
        response = narrow.http.post(COMPLETION, json={"temperature": 0} | body)
        usages.append(response.json()["usage"])

    with ThreadPoolExecutor(6) as pool:
        for _ in range(5):
            pool.submit(post, prompt="\t")
        # Four at once of 60 tokens each want 13 blocks of the 8: where any overlap, some are preempted.
        for letter in "zvu":
            pool.submit(post, prompt=letter * 20, max_tokens=40, n=4)
        pool.submit(post, prompt="y", max_tokens=10, n=3)
    for _ in range(3):
        with narrow.http.stream(
            "POST", COMPLETION, json={"prompt": "w", "stream": True, "max_tokens": 60}
        ) as r:
            next(r.iter_raw(1))
    for wrong in ({"prompt": "z" * 64}, {"prompt": "z", "temperature": -1}):
        assert narrow.http.post(COMPLETION, json=wrong).status_code == 400
    after = at_rest(narrow)
    stop_scraping.set()
    watcher.join(5)
    assert not falls

    def grown(*key: str) -> float:
        return after[key] - before.get(key, 0)

    ended = {
        reason: grown("request_success_total", reason) for reason in ("stop", "length", "abort", "error")
    }
    # An answer of 60 tokens may end before its client has left.
    assert ended["stop"] == 5
    assert ended["length"] + ended["abort"] == 3 * 4 + 3 + 3
    assert ended["error"] == 0
    assert grown("e2e_request_latency_seconds_count") == sum(ended.values()) == 23
    assert grown("time_to_first_token_seconds_count") == 23
    assert grown("admission_rejections_total", "context_length_exceeded") == 1
    assert grown("admission_rejections_total", "http_400") == 1
    aborted = grown("generation_tokens_total") - sum(usage["completion_tokens"] for usage in usages)
    assert 3 <= aborted <= 3 * 60
    assert grown("prompt_tokens_total") == sum(usage["prompt_tokens"] for usage in usages) + 3
    cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
    assert grown("prompt_tokens_cached_total") == cached
    assert grown("num_preemptions_total") > 0
    assert grown("kv_conservation_failures_total") == 0


def test_the_aliases_are_the_same_numbers(narrow: ServeProcess) -> None:
    text = narrow.http.get("/metrics").text
    samples = {
        (s.name, *sorted(s.labels.items())): s.value
        for f in text_string_to_metric_families(text)
        for s in f.samples
    }
    vllm = {key: value for key, value in samples.items() if key[0].startswith("vllm:")}
    assert vllm == {key: samples["rooftree:" + key[0].removeprefix("vllm:"), *key[1:]] for key in vllm}
    names = {key[0].removeprefix("vllm:") for key in vllm}
    assert {
        "num_requests_running",
        "num_requests_waiting",
        "kv_cache_usage_perc",
        "cache_config_info",
    } <= names
    assert {"prefix_cache_queries_total", "prefix_cache_hits_total", "num_preemptions_total"} <= names
    assert {"time_to_first_token_seconds_bucket", "inter_token_latency_seconds_bucket"} <= names
    info = next(key for key in vllm if key[0] == "vllm:cache_config_info")
    assert {("block_size", "16"), ("num_gpu_blocks", "8"), ("model_name", "walker")} <= set(info[1:])
