"""The small parts by themselves."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooftree.engine.messages import EngineReady, SchedulerStats
from rooftree.engine.outputs import Logprob, PositionLogprobs
from rooftree.engine.stats import IterationStats
from rooftree.errors import ConfigError, RequestError
from rooftree.server.config import ServerConfig
from rooftree.server.exposition import Exposition
from rooftree.server.fields import CHAT_OFF_VALUES, COMPLETION_OFF_VALUES
from rooftree.server.histogram import SECONDS, SMALL_NUMBERS, TOKENS, Histogram
from rooftree.server.inflight import InFlight
from rooftree.server.json_body import ClientGone, parse_object
from rooftree.server.lifecycle import model_name
from rooftree.server.logprobs import TextOffsets, chat_logprobs, completion_logprobs
from rooftree.server.metrics import Metrics
from rooftree.server.protocol import ChatCompletionRequest, CompletionRequest
from rooftree.server.startup_report import print_report

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), json_values), st.booleans())
def test_every_json_object_is_read_as_it_was_written(value: dict[str, Any], ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).replace("Infinity", "1e308")
    try:
        body = text.encode()
    except UnicodeEncodeError:
        return
    try:
        assert parse_object(body) == json.loads(text)
    except RequestError:
        # Half a surrogate pair is no character, written as an escape or not.
        assert "\\ud" in text


@given(st.binary(max_size=40))
def test_any_bytes_are_an_object_or_a_refusal(body: bytes) -> None:
    with contextlib.suppress(RequestError):
        assert isinstance(parse_object(body), dict)


@given(st.dictionaries(st.text(alphabet="abc"), st.integers(), min_size=1), st.data())
def test_a_key_given_twice_is_found(value: dict[str, int], data: st.DataObject) -> None:
    again = data.draw(st.sampled_from(sorted(value)))
    inner = json.dumps(value)[:-1] + f", {json.dumps(again)}: 0}}"
    for text in (inner, f'{{"x": [{inner}]}}'):
        with pytest.raises(RequestError, match="appears twice") as caught:
            parse_object(text.encode())
        assert caught.value.param == again


def test_a_key_given_twice_among_very_many_is_found_at_once() -> None:
    # Comparing each with each would take minutes.
    keys = [f"k{index}" for index in range(50_000)]
    body = json.dumps(dict.fromkeys(keys, 1))[:-1] + ', "k49999": 1}'
    with pytest.raises(RequestError, match="'k49999' appears twice"):
        parse_object(body.encode())


def test_no_field_is_both_honoured_and_off() -> None:
    assert not set(ChatCompletionRequest.__struct_fields__) & set(CHAT_OFF_VALUES)
    assert not set(CompletionRequest.__struct_fields__) & set(COMPLETION_OFF_VALUES)


@given(st.text(max_size=20), st.data())
def test_text_offsets_under_every_cut(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    cuts = sorted({0, len(raw), *data.draw(st.lists(st.integers(0, len(raw))))})
    offsets = TextOffsets()
    for begin, end in itertools.pairwise(cuts):
        inside = raw[begin] & 0xC0 == 0x80
        offset = offsets.add(raw[begin:end])
        assert offset == len(raw[:begin].decode(errors="ignore"))
        assert inside or text[:offset].encode() == raw[:begin]


def test_logprobs_of_tokens_that_are_no_text() -> None:
    parts = [Logprob(1, "\ufffd", b"\xe2\x82", -math.inf, 2), Logprob(2, "\ufffd", b"\xe2\x83", -1.0, 1)]
    shaped = completion_logprobs([PositionLogprobs(parts[0], parts)], TextOffsets())
    assert shaped.top_logprobs == [{"bytes:\\xe2\\x82": -9999.0, "bytes:\\xe2\\x83": -1.0}]
    marks = [Logprob(3, "<|a|>", b"", -1.0), Logprob(4, "<|b|>", b"", -2.0), Logprob(5, "", b"", -3.0)]
    shaped = completion_logprobs([PositionLogprobs(marks[0], marks)], TextOffsets())
    assert shaped.tokens == ["<|a|>"]
    assert shaped.top_logprobs == [{"<|a|>": -1.0, "<|b|>": -2.0, "token_id:5": -3.0}]
    position = chat_logprobs([PositionLogprobs(parts[0], parts)]).content[0]
    assert (position.bytes, position.logprob) == ([0xE2, 0x82], -9999.0)


@given(st.lists(st.floats(0, 1e5)))
def test_a_histogram_counts_by_upper_bound(values: list[float]) -> None:
    bounds = (0.5, 1.0, 2.0, 1e4)
    histogram = Histogram(bounds)
    histogram.observe_all(values)
    counted = dict(histogram.buckets())
    assert counted == {str(b): sum(v <= b for v in values) for b in bounds} | {"+Inf": len(values)}
    assert histogram.sum == pytest.approx(sum(values))


def test_buckets_rise_and_are_fine_below_a_third_of_a_second() -> None:
    for bounds in (SECONDS, TOKENS, SMALL_NUMBERS):
        assert list(bounds) == sorted(set(bounds))
    fine = [bound for bound in SECONDS if 0.001 <= bound <= 0.3]
    assert all(after <= 2 * before for before, after in itertools.pairwise(fine))


def test_the_blocks_of_an_engine_that_has_not_run_yet_are_free() -> None:
    metrics = Metrics("tiny")
    metrics.engine_ready(16, 40)
    line = 'rooftree:kv_cache_blocks{engine="0",model_name="tiny",state="free"} 40.0'
    assert line in Exposition(metrics).text().decode()
    metrics.record(IterationStats(scheduler=SchedulerStats(num_owned_blocks=40, num_total_blocks=40)))
    metrics.engine_ready(16, 40)
    assert metrics.scheduler.num_owned_blocks == 40


def test_metrics_of_an_idle_server_are_zero_and_complete() -> None:
    metrics = Metrics("m")
    first = Exposition(metrics).text().decode()
    assert 'rooftree:request_success_total{engine="0",finished_reason="abort",model_name="m"} 0.0' in first
    metrics.record(IterationStats(scheduler=SchedulerStats(num_owned_blocks=1, num_total_blocks=4)))
    assert 'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25' in Exposition(metrics).text().decode()


def receiver(gone: asyncio.Event) -> Any:
    async def receive() -> dict[str, str]:
        await gone.wait()
        return {"type": "http.disconnect"}

    return receive


def test_work_ends_with_its_client_or_is_cut_off() -> None:
    async def forever(cleaned: list[str]) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            cleaned.append("yes")

    async def test() -> None:
        inflight, gone, cleaned = InFlight(), asyncio.Event(), []
        assert await inflight.run(receiver(gone), asyncio.sleep(0, "done")) == "done"
        await inflight.wait_idle()
        left = asyncio.create_task(inflight.run(receiver(gone), forever(cleaned)))
        await asyncio.sleep(0)
        gone.set()
        with pytest.raises(ClientGone):
            await left
        assert cleaned == ["yes"]
        cut = asyncio.create_task(inflight.run(receiver(asyncio.Event()), forever(cleaned)))
        await asyncio.sleep(0.01)
        assert len(inflight) == 1
        inflight.cut_off()
        with pytest.raises(RequestError) as caught:
            await cut
        assert (caught.value.status, cleaned, len(inflight)) == (503, ["yes"] * 2, 0)
        await inflight.wait_idle()

    asyncio.run(test())


def test_a_defect_in_the_work_is_raised_as_it_is() -> None:
    async def broken() -> None:
        raise ZeroDivisionError

    async def test() -> None:
        with pytest.raises(ZeroDivisionError):
            await InFlight().run(receiver(asyncio.Event()), broken())

    asyncio.run(test())


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("smollm2", "smollm2"),
        ("hf:org/name", "org/name"),
        ("hf:org/name@main", "org/name"),
        ("/a/Model.Q4_1.gguf", "Model.Q4_1"),
        ("/a/folder-1.5/", "folder-1.5"),
    ],
)
def test_the_name_that_a_model_is_served_under(model: str, name: str) -> None:
    assert model_name(model) == name


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"api_keys": ("good", "")}, "--api-key"),
        ({"api_keys": (" ",)}, "--api-key"),
        ({"api_keys": ("k\n",)}, "--api-key"),
        ({"api_keys": ("kéy",)}, "--api-key"),
        ({"served_model_names": ("",)}, "--served-model-name"),
        ({"shutdown_timeout": -1.0}, "--shutdown-timeout"),
        ({"shutdown_timeout": math.nan}, "--shutdown-timeout"),
        ({"heartbeat_timeout": 0.0}, "--heartbeat-timeout"),
        ({"heartbeat_timeout": math.nan}, "--heartbeat-timeout"),
        ({"max_body_size": 0}, "--max-body-size"),
    ],
)
def test_options_out_of_range_are_refused_by_their_flag(options: dict[str, Any], flag: str) -> None:
    with pytest.raises(ConfigError, match=f"^{flag} must be "):
        ServerConfig(**options)


def test_the_report_is_plain_off_a_terminal() -> None:
    rows = [("weights", "1.0 GiB", "packed"), ("KV cache", "12.0 MiB", "--kv-cache-memory")]
    ready = EngineReady(8, 16, 128, {"open": 0.25, "weights": 1.0}, rows, ["length lowered"])
    out = io.StringIO()
    print_report(ready, "m", "http://h:1", 1.5, key_needed=True, out=out)
    lines = out.getvalue().splitlines()
    assert lines[0] == "m is ready on http://h:1 after 1.50 s (open 0.25 s, weights 1.00 s)"
    assert lines[1:4] == [
        "  memory        size  chosen by",
        "  weights    1.0 GiB  packed",
        "  KV cache  12.0 MiB  --kv-cache-memory",
    ]
    assert lines[4] == "length lowered"
    assert "-H 'Authorization: Bearer KEY'" in lines[-1]
