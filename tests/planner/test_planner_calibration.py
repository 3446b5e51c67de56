"""Measured points, the fit, and the gate: errors of predictions whose constants never saw the point."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooftree.errors import ConfigError, ModelError
from rooftree.planner.calibration.cases import build_case, build_cases
from rooftree.planner.calibration.fit import fit
from rooftree.planner.calibration.own import MOST_STEPS, LoggedStep, calibrate_steps, read_steps, store
from rooftree.planner.calibration.points import COLUMNS, parse_points, read_points
from rooftree.planner.calibration.report import validation_json
from rooftree.planner.calibration.ship import constants_document
from rooftree.planner.calibration.validate import Validation, validate
from rooftree.planner.calibration.vector import INDEX, NAMES, SPREAD, START, Vector, covariance_of
from rooftree.planner.constants import choose_constants, load_constants
from rooftree.planner.devices import measured_device
from rooftree.planner.models import published_model, published_names
from rooftree.roofline.batch import Batch, RequestTokens, Span, Window, batch_of
from rooftree.roofline.costs import model_costs
from rooftree.roofline.efficiency import Efficiency
from rooftree.roofline.time import step_time
from rooftree.roofline.work import step_work


@pytest.fixture(scope="module")
def result() -> Validation:
    points, unusable = read_points()
    return validate(points, unusable, measured_device)


def summary(result: Validation, split: str, kind: str) -> dict[str, float]:
    rows = validation_json(result)["summary"][split][kind]
    assert rows is not None
    return rows


def test_the_gate_calibrated_tpot(result: Validation) -> None:
    row = summary(result, "calibrated", "tpot")
    assert row["points"] >= 140
    assert row["mean"] < 0.09
    assert row["median"] < 0.05
    assert row["p90"] < 0.20
    assert abs(row["bias"]) < 0.03


def test_the_gate_unseen_tpot(result: Validation) -> None:
    row = summary(result, "unseen", "tpot")
    assert row["points"] >= 200
    assert row["median"] < 0.15
    assert row["in_band"] >= 0.80


def test_the_gate_unseen_servers_under_load(result: Validation) -> None:
    rows = validation_json(result)["groups"]["unseen"]["tpot"]["load"]
    served = next(row for row in rows if row["group"] == "server under load")
    assert served["median"] < 0.13


def test_the_gate_ttft_of_published_protocols(result: Validation) -> None:
    assert summary(result, "calibrated", "ttft")["median"] < 0.20
    assert summary(result, "unseen", "ttft")["median"] < 0.20


def test_the_gate_throughput(result: Validation) -> None:
    assert summary(result, "calibrated", "throughput")["median"] < 0.08
    assert summary(result, "unseen", "throughput")["median"] < 0.10


def test_bands_hold_what_they_promise(result: Validation) -> None:
    for split in ("calibrated", "unseen"):
        for kind in ("tpot", "ttft", "throughput", "prefill"):
            assert summary(result, split, kind)["in_band"] >= 0.78, (split, kind)


def test_no_load_that_ran_is_refused_and_none_is_forgotten(result: Validation) -> None:
    assert not result.memory_refused
    assert result.memory_points > 300


def test_impossible_rows_are_named(result: Validation) -> None:
    assert "P1068" in {item.point.id for item in result.impossible}
    for item in result.impossible:
        assert item.point.seconds < item.fastest


def test_every_row_is_judged_or_accounted_for(result: Validation) -> None:
    points, _ = read_points()
    rows = len(points) + 91
    judged = {prediction.point.id for prediction in result.predictions}
    left = {item.id for item in result.unusable} | {item.point.id for item in result.impossible}
    hidden = {point.id for point in points if point.kind == "ttft" and not point.published}
    assert len(judged | left | hidden) == rows
    assert not judged & left


def test_the_shipped_constants_are_those_of_the_shipped_points(result: Validation) -> None:
    shipped = {entry.stack: entry for entry in load_constants()}
    fresh = constants_document(result)["stacks"]
    assert set(shipped) == {entry["stack"] for entry in fresh}
    for entry in fresh:
        known = shipped[entry["stack"]]
        assert known.points == entry["points"]
        for name, value in entry["constants"].items():
            assert known.constants[name] == pytest.approx(value, rel=0.05), (entry["stack"], name)
        for kind, value in entry["bands"].items():
            assert known.bands[kind] == pytest.approx(value, rel=0.05, abs=0.005)


def test_a_fit_finds_the_constants_behind_made_up_measurements() -> None:
    """Points computed with known constants: the fit's predictions agree, whatever it calls them."""
    points, _ = read_points()
    cases, _ = build_cases([p for p in points if p.engine == "vllm" and p.kind == "tpot"], measured_device)
    truth: Vector = START + 0.25 * SPREAD * np.sin(np.arange(len(NAMES)))

    class Made:
        def __init__(self, index: int) -> None:
            self.sum = cases[index].observation
            self.log_measured = self.sum.predict(truth)[0]

        def predict(self, vector: Vector) -> tuple[float, Vector]:
            return self.sum.predict(vector)

    made = [Made(index) for index in range(len(cases))]
    found = fit(made, START, covariance_of(SPREAD), 0.01).vector
    errors = [abs(one.predict(found)[0] - one.log_measured) for one in made]
    assert max(errors) < 0.02


def test_derivatives_are_those_of_differences() -> None:
    points, _ = read_points()
    kinds = {"tpot": "vllm", "ttft": "vllm", "throughput": "trtllm", "prefill": "splitwise"}
    for kind, engine in kinds.items():
        point = next(p for p in points if p.kind == kind and p.engine == engine)
        observation = build_case(point, measured_device).observation
        value, gradient = observation.predict(START)
        for index in range(len(NAMES)):
            moved = START.copy()
            moved[index] += 1e-5
            numeric = (observation.predict(moved)[0] - value) / 1e-5
            assert gradient[index] == pytest.approx(numeric, abs=2e-3), NAMES[index]


def test_the_arrays_of_the_fit_are_the_steps_of_the_cost_model() -> None:
    """One request at a time is one decode step after another: the fit's sum is their mean."""
    points, _ = read_points()
    point = next(p for p in points if p.id == "P0187")
    case = build_case(point, measured_device)
    vector = START.copy()
    vector[INDEX["launch_seconds"]] = -20.0
    device = measured_device(point.device)
    constants = np.exp(vector)
    efficiency = Efficiency(
        weight_bandwidth=constants[0],
        kv_bandwidth=constants[INDEX["kv_bandwidth"]],
        arithmetic=constants[INDEX["arithmetic_16"]],
        attention_arithmetic=constants[INDEX["attention_arithmetic"]],
        layer_seconds=constants[INDEX["layer_seconds"]],
        step_seconds=constants[INDEX["step_seconds"]],
        request_seconds=constants[INDEX["request_seconds"]],
    )
    costs = model_costs(published_model("Llama-3-8B").architecture, kv_dtype="fp16")
    middle = batch_of([RequestTokens(1, 512)], costs.windows)
    expected = step_time(step_work(costs, middle), device, efficiency).seconds
    assert np.exp(case.observation.predict(vector)[0]) == pytest.approx(expected, rel=0.01)


HEADER = ",".join(COLUMNS)
ROW = "X1,me,meta-llama/Llama-3.1-8B,8.03,h100_sxm,1,1,bf16,,8,512,128,mean_tpot,9.5,ms,vllm 0.18.0"


def test_a_csv_of_ones_own() -> None:
    points, unusable = parse_points(f"{HEADER}\n{ROW}\n", "own.csv")
    assert not unusable
    assert (points[0].engine, points[0].version, points[0].seconds) == ("vllm", "0.18.0", 0.0095)


def test_a_csv_without_the_columns_is_refused() -> None:
    with pytest.raises(ConfigError, match="no column source"):
        parse_points("id,model\nX,y\n", "own.csv")


@pytest.mark.parametrize(
    ("cell", "by", "reason"),
    [
        ("9.5", "fast", "value is 'fast'"),
        ("9.5", "-1", "must be above 0"),
        ("9.5", "nan", "must be above 0"),
        ("9.5", "", "not a number"),
        (",8,512,", ",MLPerf,512,", "not a number of tokens or requests"),
        (",512,128,", ",,128,", "isl is not stated"),
        ("mean_tpot", "mood", "not the time of a step"),
        ("vllm 0.18.0", "vllm 0.18.0; disagg", "different devices"),
    ],
)
def test_a_bad_row_is_named_with_its_reason(cell: str, by: str, reason: str) -> None:
    points, unusable = parse_points(f"{HEADER}\n{ROW.replace(cell, by)}\n", "own.csv")
    assert not points
    assert unusable[0].id == "X1"
    assert reason in unusable[0].reason


def test_rows_of_unknown_models_and_devices_are_reported_not_raised() -> None:
    rows = [ROW, ROW.replace("h100_sxm", "warp9"), ROW.replace("Llama-3.1-8B", "nobody-7b")]
    points, _ = parse_points(f"{HEADER}\n" + "\n".join(rows) + "\n", "own.csv")
    cases, unusable = build_cases(points, measured_device)
    assert len(cases) == 1
    assert "warp9" in unusable[0].reason
    assert "nobody-7b" in unusable[1].reason


def logged(batch: Batch, windows: Sequence[Window], seconds: float) -> bytes:
    """A line of a step log."""
    values = {
        "num_requests": batch.sequences,
        "num_tokens": batch.tokens,
        "num_outputs": batch.outputs,
        "windows": [window.size for window in windows],
        "decode_context": [span.decode for span in batch.spans],
        "prefill_pairs": [span.prefill_pairs for span in batch.spans],
        "prefill_reads": [span.prefill_reads for span in batch.spans],
        "seconds": seconds,
        "bound": "bandwidth",
    }
    return json.dumps(values).encode() + b"\n"


def test_a_step_log_gives_constants(tmp_path: Path) -> None:
    """Steps of a made-up server: the fitted constants predict steps that were left out."""
    costs = model_costs(published_model("Llama-3.1-8B").architecture)
    device = measured_device("H100 SXM")
    truth = Efficiency(0.7, 0.6, 0.5, 0.4, layer_seconds=2e-5, step_seconds=2e-3, request_seconds=2e-5)
    lines = []
    for count in (1, 2, 4, 8, 16, 32):
        for context in (16, 256, 1024, 4096):
            items = [RequestTokens(1, context, count=count), RequestTokens(64 * count, context // 16)]
            batch = batch_of(items[: 1 + context % 3], costs.windows)
            seconds = step_time(step_work(costs, batch), device, truth).seconds
            lines.append(logged(batch, costs.windows, seconds))
    file = tmp_path / "steps.json"
    file.write_bytes(b"".join(lines))
    entry = calibrate_steps(file, "Llama-3.1-8B", "H100 SXM", None, "rooftree", None, "bf16", 1)
    assert entry["errors"]["step"]["median"] < 0.05
    own = tmp_path / "constants.json"
    store([entry], own)
    store([entry], own)
    known = load_constants(own)
    chosen = choose_constants(known, device, "rooftree", "bf16")
    assert chosen.origin == "calibrated on 24 points"
    assert choose_constants(known, device, "nobody", "bf16").origin == "uncalibrated"
    assert choose_constants(known, device, None, "bf16").stack == ""


@given(
    st.lists(st.tuples(st.integers(1, 600), st.integers(0, 5000), st.integers(0, 1)), min_size=1),
    st.lists(st.sampled_from([None, 7, 128, 4096]), min_size=1, unique=True),
)
def test_a_logged_step_is_read_back_exactly(requests: list[Any], sizes: list[int | None]) -> None:
    """Any mixture of prompts and decodes, under any windows, whatever order the reader has them in."""
    windows = [Window(size) for size in sizes]
    batch = batch_of([RequestTokens(new, start, outputs=out) for new, start, out in requests], windows)
    step = msgspec.json.decode(logged(batch, windows, 0.5), type=LoggedStep)
    assert step.batch(windows) == batch
    assert step.batch(windows[::-1]).spans == batch.spans[::-1]
    with pytest.raises(ConfigError, match="has a window of 33"):
        step.batch([Window(33)])


LINE = logged(Batch(2, 1, 1, (Span(0, 3, 2),)), [Window()], 0.25)


def test_a_last_line_that_was_cut_short_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "steps"
    file.write_bytes(30 * LINE + LINE[:20])
    assert len(read_steps(file)) == 30
    file.write_bytes((30 * LINE).rstrip())
    assert len(read_steps(file)) == 30


def test_of_a_long_log_few_steps_are_taken_over_its_whole_length(tmp_path: Path) -> None:
    file = tmp_path / "steps"
    file.write_bytes(2000 * LINE + 2000 * LINE.replace(b"0.25", b"0.5"))
    steps = read_steps(file)
    assert len(steps) == MOST_STEPS
    assert sum(step.seconds for step in steps) == MOST_STEPS * 0.375


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "at least 20"),
        (19 * LINE, "19 steps; at least 20"),
        (b"{\n", "line 1"),
        (LINE + b"[]\n", "line 2"),
        (b'{"num_tokens": 1}\n', "missing required field `num_requests`"),
        (LINE.replace(b"[3]", b"[-3]"), r">= 0.*prefill_pairs"),
        (LINE.replace(b"0.25", b"0"), r"> 0.*seconds"),
        (LINE.replace(b"[3]", b"[3, 4]"), "a number for each of windows"),
        (LINE.replace(b"0.25", b"NaN"), "line 1"),
        (b"\xff\n", "line 1"),
    ],
)
def test_a_bad_step_log_is_refused(tmp_path: Path, text: bytes, message: str) -> None:
    file = tmp_path / "steps.json"
    file.write_bytes(text)
    with pytest.raises(ConfigError, match=message):
        read_steps(file)


def test_every_published_model_is_read() -> None:
    sizes = {
        "Llama-2-7b": 6_738_415_616,
        "Mixtral-8x7B": 46_702_792_704,
        "SmolLM2-135M": 134_515_008,
        "DeepSeek-V3": 671_026_419_200,
        "Qwen3-32B": 32_762_123_264,
    }
    assert len(published_names()) > 50
    for name in published_names():
        assert published_model(name).architecture.num_parameters > 1e8
    for name, size in sizes.items():
        assert published_model(name).architecture.num_parameters == size


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("meta-llama/Llama-3.3-70B-Instruct", "meta-llama/Llama-3.1-70B"),
        ("nvidia/Llama-3.1-8B-Instruct-FP8", "meta-llama/Llama-3.1-8B"),
        ("llama2-70b-99", "meta-llama/Llama-2-70b-hf"),
        ("Qwen/Qwen3-235B-A22B-FP8", "Qwen/Qwen3-235B-A22B"),
        ("DEEPSEEK-R1", "deepseek-ai/DeepSeek-V3"),
        ("mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1"),
    ],
)
def test_names_as_people_write_them(spelling: str, name: str) -> None:
    assert published_model(spelling).name == name


def test_unknown_models_are_refused_with_near_names() -> None:
    with pytest.raises(ModelError, match=r"near it are .*Llama"):
        published_model("meta-llama/Llama-9-70B")
