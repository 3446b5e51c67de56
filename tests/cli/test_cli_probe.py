"""rooftree probe, and the commands that find what it wrote (in process, on a machine that is made up)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rigs.made_up_machine import TRUE, FakeMeter
from rooftree.cli.main import cli
from rooftree.engine.executors.processor import processor_name
from rooftree.planner.constants import load_constants
from rooftree.planner.devices import measured_device
from rooftree.probe import meter
from rooftree.roofline.machine import default_machine_file


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(meter, "MachineMeter", lambda setting: FakeMeter(setting.threads))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    load_constants.cache_clear()
    measured_device.cache_clear()


def rooftree(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [*map(str, arguments)])


def test_help_teaches() -> None:
    result = rooftree("probe", "--help")
    assert result.exit_code == 0
    assert "\n    rooftree probe\n" in result.output
    for flag in ("--output", "--threads", "--isa", "--json"):
        assert flag in result.output


def test_the_table_says_what_figures_mean(tmp_path: Path) -> None:
    result = rooftree("probe", "--threads", 4)
    assert result.exit_code == 0, result.output
    for words in ("memory read, 1 thread", "memory read, 4 threads", "40.0 GB/s", "1000 GOPS", "a request"):
        assert words in result.output
    assert (tmp_path / "config" / "rooftree" / "this-machine.json").exists()


def test_the_machine_is_found_by_the_others(tmp_path: Path) -> None:
    before = rooftree("plan", "Llama-3.2-1B", "--device", "this-machine")
    assert before.exit_code == 1
    assert "run rooftree probe" in before.output
    probed = rooftree("probe", "--threads", 4, "--json")
    assert probed.exit_code == 0, probed.output
    document = json.loads(probed.stdout)
    assert [limits["threads"] for limits in document["limits"]] == [1, 4]
    assert document["efficiency"]["attention_arithmetic"] == pytest.approx(TRUE.attention_arithmetic, rel=0.1)
    assert json.loads(Path(document["file"]).read_text())["device"] == document["device"]
    measured_device.cache_clear()
    (device,) = json.loads(rooftree("devices", "this-machine", "--json").output)["devices"]
    assert (device["name"], device["bandwidth"]) == (processor_name(), 40e9)
    assert processor_name() in rooftree("devices").output
    options = ("--weight-dtype", "q4_0", "--concurrency", "4", "--json")
    result = rooftree("plan", "Llama-3.2-1B", "--device", "this-machine", *options)
    assert result.exit_code == 0, result.output
    plan = json.loads(result.output)["plan"]
    assert plan["device"] == processor_name()
    assert plan["step_model"]["origin"].startswith("probed on ")
    assert plan["step_model"]["stack"].endswith("/ rooftree / any")
    other = rooftree("plan", "Llama-3.2-1B", "--device", "this-machine", "--engine", "vllm", *options)
    assert json.loads(other.output)["plan"]["step_model"]["origin"] == "uncalibrated"


def test_another_file_may_be_written(tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    assert rooftree("probe", "--threads", 1, "--output", file).exit_code == 0
    assert json.loads(file.read_text())["setting"]["threads"] == 1
    assert not (tmp_path / "config").exists()
    assert rooftree("devices", "this-machine", "--file", file, "--json").exit_code == 0
    wrong = rooftree("probe", "--threads", 1, "--output", file / "below")
    assert wrong.exit_code == 1
    assert "--output" in wrong.output


def test_wrong_options_are_refused() -> None:
    assert rooftree("probe", "--threads", 0).exit_code == 2
    unknown = rooftree("probe", "--isa", "vax")
    assert unknown.exit_code == 1
    assert "--isa vax" in unknown.output


def test_a_file_that_cannot_be_written_is_refused_before_measuring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meter, "MachineMeter", None)
    (tmp_path / "file").write_text("")
    result = rooftree("probe", "--output", tmp_path / "file" / "x.json")
    assert result.exit_code == 1
    assert "give another with --output" in result.output


def test_a_step_log_of_this_machine_can_be_fitted(tmp_path: Path) -> None:
    assert rooftree("probe").exit_code == 0
    sizes = [(1, 100), (4, 400), (16, 2000), (64, 9000)] * 6
    steps = [
        {
            "num_requests": tokens,
            "num_tokens": tokens,
            "num_outputs": tokens,
            "windows": [None],
            "decode_context": [context + number],
            "prefill_pairs": [0],
            "prefill_reads": [0],
            "seconds": 0.05 + 0.001 * tokens,
        }
        for number, (tokens, context) in enumerate(sizes)
    ]
    log = tmp_path / "steps.jsonl"
    log.write_text("".join(json.dumps(step) + "\n" for step in steps))
    fitted = rooftree(
        "plan", "calibrate", "--steps", log, "--model", "smollm2-135m", "--device", "this-machine"
    )
    assert fitted.exit_code == 0, fitted.output
    assert "24 points" in fitted.output
    plan = rooftree("plan", "smollm2-135m", "--device", "this-machine", "--engine", "rooftree", "--json")
    found = json.loads(plan.output)["plan"]
    assert found["step_model"]["origin"] == "calibrated on 24 points"
    probed = json.loads(rooftree("plan", "smollm2-135m", "--device", "this-machine", "--json").output)["plan"]
    assert found["memory"] == probed["memory"]


def test_a_broken_machine_file_says_what_to_do() -> None:
    assert rooftree("probe").exit_code == 0
    default_machine_file().write_text("{")
    result = rooftree("devices")
    assert result.exit_code == 1
    assert "run rooftree probe again" in result.output
