"""The step log: every record, in order, and never in the way."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import msgspec
import pytest
from engine_fakes import core_request, make_core, run_core

from rooftree.engine.builder import build_engine_core
from rooftree.engine.config import EngineConfig
from rooftree.engine.llm import LLM
from rooftree.engine.stats import StepRecord
from rooftree.engine.step_log import StepLog
from rooftree.engine.telemetry import Telemetry
from rooftree.errors import ConfigError


def record(number: int) -> StepRecord:
    return StepRecord(
        number, 1, 1, 0, 1, (None,), (9,), (0,), (0,), 0.5, 0.4, 0.3, 1e8, 2e8, 0.7, 0.1, "bandwidth"
    )


def read(path: Path) -> list[StepRecord]:
    return [msgspec.json.decode(line, type=StepRecord) for line in path.read_bytes().splitlines()]


def test_every_step_is_a_line_with_its_names(tmp_path: Path) -> None:
    log = StepLog(tmp_path / "steps")
    core = make_core(telemetry=Telemetry(log=log))
    core.add_request(core_request("a", [1, 2, 3], 5))
    run_core(core)
    core.close()
    core.close()
    lines = read(tmp_path / "steps")
    assert len(lines) == 5
    assert lines[-1] == core.last_step
    named = msgspec.json.decode((tmp_path / "steps").read_bytes().splitlines()[0])
    assert list(named) == list(StepRecord.__struct_fields__)
    assert (named["num_prefill_tokens"], named["prefill_pairs"], named["windows"]) == (3, [6], [None])


def test_a_log_that_is_there_is_kept_once(tmp_path: Path) -> None:
    path = tmp_path / "steps"
    for number in range(3):
        log = StepLog(path)
        log.add(record(number))
        log.close()
    assert [line.at for line in read(path)] == [2]
    assert [line.at for line in read(tmp_path / "steps.1")] == [1]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["steps", "steps.1"]


def test_a_pipe_without_a_reader_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match=r"--step-log .*pipe: nobody reads this pipe; start its reader"):
        StepLog(tmp_path / "pipe")


def test_a_pipe_gets_the_records(tmp_path: Path) -> None:
    """More than it holds: the log's thread waits for the reader, the step loop does not."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    os.set_blocking(reader, True)
    log = StepLog(path)
    for number in range(2000):
        log.add(record(number))
    got: list[bytes] = []
    closing = threading.Thread(target=log.close)
    closing.start()
    while part := os.read(reader, 1 << 16):
        got.append(part)
    closing.join()
    os.close(reader)
    lines = b"".join(got).splitlines()
    assert [msgspec.json.decode(line, type=StepRecord).at for line in lines] == list(range(2000))
    assert [file.name for file in tmp_path.iterdir()] == ["pipe"]


def test_a_pipe_whose_reader_leaves_ends_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    log = StepLog(path)
    os.close(reader)
    log.add(record(1))
    log.close()
    assert "ends here" in caplog.text


def test_a_full_file_makes_room_for_the_next(tmp_path: Path) -> None:
    log = StepLog(tmp_path / "steps", file_bytes=1)
    log.add(record(1))
    log.close()
    assert [line.at for line in read(tmp_path / "steps.1")] == [1]
    assert read(tmp_path / "steps") == []


def test_a_disk_that_fails_costs_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    log = StepLog(Path("/dev/full"))
    with caplog.at_level(logging.WARNING):
        core = make_core(telemetry=Telemetry(log=log))
        core.add_request(core_request("a", [1, 2, 3], 5))
        assert run_core(core)["a"][-1].finish_reason == "length"
        core.close()
    assert [entry.message for entry in caplog.records] == [
        "the step log /dev/full ends here: No space left on device"
    ]
    log.add(record(1))


def test_a_disk_that_is_too_slow_costs_lines_and_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = StepLog(tmp_path / "steps", pending=0)
    for number in range(3):
        log.add(record(number))
    with caplog.at_level(logging.WARNING):
        log.close()
    assert "lacks 3 steps" in caplog.text
    assert read(tmp_path / "steps") == []


@pytest.mark.parametrize("name", ["nowhere/steps", ".", ""])
def test_a_file_that_cannot_be_opened_is_refused_before_anything_is_read(tmp_path: Path, name: str) -> None:
    path = str(tmp_path / name) if name else ""
    with pytest.raises(ConfigError, match="--step-log"):
        build_engine_core(EngineConfig(model="no-such-model.gguf", step_log=path))


def test_an_engine_writes_the_log_that_it_is_asked_for(tmp_path: Path, tiny_model) -> None:
    path = tmp_path / "steps"
    options = {"threads": 1, "kv_cache_memory": 4 << 20}
    with LLM(tiny_model("llama", "F32"), step_log=str(path), **options) as llm:
        llm.core.add_request(core_request("a", [1, 2, 3], 4))
        run_core(llm.core)
    assert len(read(path)) == 4
    assert EngineConfig().step_log is None
