"""Plans on this machine take of its memory what the engine would allocate there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rigs.made_up_machine import FakeMeter
from rigs.models import random_weights, tiny_spec, write_gguf_model
from rooftree.checkpoint.open import open_checkpoint
from rooftree.cli.main import cli
from rooftree.engine.config import EngineConfig
from rooftree.engine.memory import wanted_model_len
from rooftree.engine.prediction import predict_footprint, predict_memory
from rooftree.planner.constants import load_constants
from rooftree.planner.devices import measured_device
from rooftree.planner.models import resolve_model
from rooftree.planner.own_engine import own_options
from rooftree.probe import meter
from rooftree.roofline.memory import USUAL_MEMORY, memory_budget
from rooftree.specs.device import DeviceSpec

MACHINE = DeviceSpec("made up", {"fp32": 1e11}, 1e10, memory_bytes=24 << 20)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    spec = tiny_spec("llama", vocab_size=500, max_position_embeddings=8192)
    return write_gguf_model(tmp_path / "m.gguf", spec, random_weights(spec), dtype="F16")


@pytest.mark.parametrize(("step", "seats"), [(None, None), (64, 8)])
def test_kv_blocks_are_those_of_the_engine(model: Path, step: int | None, seats: int | None) -> None:
    options = own_options(str(model), USUAL_MEMORY, step, seats)
    budget = memory_budget(resolve_model(str(model)).architecture, MACHINE, options=options)
    config = EngineConfig(max_num_batched_tokens=step or 512, max_num_seqs=seats or 64)
    checkpoint = open_checkpoint(str(model))
    free = int(MACHINE.memory_bytes * options.usable_fraction) - budget.weights
    footprint = predict_footprint(config, checkpoint, wanted_model_len(config, 8192))
    assert budget.activations == footprint.activation_bytes
    assert budget.kv // footprint.kv_bytes_per_block == predict_memory(config, checkpoint, free).num_blocks
    assert budget.usable == budget.weights + budget.activations + budget.kv


def test_a_model_that_the_engine_does_not_run_is_counted_by_the_formula(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for name in ("meta-llama/Llama-3.1-8B", "no such folder", str(tmp_path)):
        options = own_options(name, USUAL_MEMORY, None, None)
        assert options.activation_bytes is None
        assert (options.kv_fraction, options.runtime_bytes) == (0.5, 0)


def test_nothing_is_left_where_the_weights_are_too_large() -> None:
    """What does not fit is short by the same bytes, whatever share KV would take."""
    large = resolve_model("Llama-3.1-8B").architecture
    half = replace(USUAL_MEMORY, kv_fraction=0.5)
    assert memory_budget(large, MACHINE, options=half) == memory_budget(large, MACHINE)


def test_the_command_plans_so_on_the_probed_machine_only(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meter, "MachineMeter", lambda setting: FakeMeter(setting.threads))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    load_constants.cache_clear()
    measured_device.cache_clear()
    assert CliRunner().invoke(cli, ["probe", "--threads", "4"]).exit_code == 0

    def plan(device: str, *more: str) -> dict[str, Any]:
        arguments = ["plan", str(model), "--device", device, "--count", "1", "--json", *more]
        result = CliRunner().invoke(cli, arguments)
        assert result.exit_code == 0, result.output
        found: dict[str, Any] = json.loads(result.output)["plan"]
        return found

    def memory(device: str, *more: str) -> dict[str, int]:
        found: dict[str, int] = plan(device, *more)["memory"]
        return found

    here, wide = memory("this-machine"), memory("this-machine", "--max-num-batched-tokens", "2048")
    assert here["runtime"] == 0
    assert here["activations"] < wide["activations"]
    free = int(here["total"] * 0.9) - here["weights"] - here["activations"]
    assert here["kv"] == free // 2
    assert memory("L40S")["runtime"] > 0
    assert memory("this-machine", "--engine", "vllm")["runtime"] > 0
    assert plan("this-machine", "--kv-dtype", "fp8")["kv_dtype"] == "fp8-per-head"
    assert plan("L40S", "--kv-dtype", "fp8")["kv_dtype"] == "fp8"
