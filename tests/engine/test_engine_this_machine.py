"""The engine's view of its machine: as probed where that fits, else by a glance."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rooftree import _native
from rooftree.checkpoint.open import open_checkpoint
from rooftree.checkpoint.stored_architecture import stored_architecture
from rooftree.engine import this_machine as module
from rooftree.engine.executors.cpu import CPUExecutor
from rooftree.engine.executors.processor import memory_bytes, processor_name
from rooftree.engine.this_machine import TYPICAL, engine_costs, this_machine
from rooftree.errors import EngineDeadError
from rooftree.roofline.batch import RequestTokens, batch_of
from rooftree.roofline.clock import step_clock
from rooftree.roofline.efficiency import Efficiency
from rooftree.roofline.machine import ProbedMachine, Quality, Setting, write_machine
from rooftree.specs.device import DeviceSpec


class FakeLimits:
    """Rates of a machine, told at once."""

    def fp32_rate(self, isa: str, processors: list[int], rounds: int, tries: int) -> float:
        return 100e9 * len(processors)

    def int8_rates(self, isa: str, processors: list[int], rounds: int, tries: int) -> list[tuple[str, float]]:
        return [("slow", 100e9 * len(processors)), ("fast", 400e9 * len(processors))]


def read_rate(num_bytes: int, tries: int) -> float:
    """Of the weights that an executor has packed."""
    return 20e9


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_native", FakeLimits())


def probed(**over: object) -> ProbedMachine:
    setting = replace(Setting(processor_name(), 2, "avx2"), **over)
    device = DeviceSpec("it", {"fp32": 1e11, "int8": 4e11}, 2e10, memory_bytes(), certainty="high")
    return ProbedMachine(setting, device, Efficiency(arithmetic=0.4), Quality(9, 0.1, 0.2), "2026-01-02")


def test_the_probed_machine_is_used(tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    write_machine(probed(), file)
    machine = this_machine(2, "avx2", read_rate, file)
    assert machine.efficiency.arithmetic == 0.4
    assert machine.device.peak_flops == {"fp32": 1e11, "int8": 4e11}
    assert machine.origin == "probed on 2026-01-02"


@pytest.mark.parametrize("over", [{"threads": 1}, {"isa": "portable"}, {"cpu": "another"}])
def test_what_was_probed_in_another_setting_is_passed_over(tmp_path: Path, over: dict[str, object]) -> None:
    file = tmp_path / "machine.json"
    write_machine(probed(**over), file)
    machine = this_machine(2, "avx2", read_rate, file)
    assert "another processor" in machine.origin
    assert machine.efficiency == TYPICAL
    assert machine.device.peak_flops == {"fp32": 200e9, "int8": 800e9}
    assert machine.device.bandwidth == 20e9


def test_without_a_file_the_limits_are_measured(tmp_path: Path) -> None:
    missing, broken = tmp_path / "none.json", tmp_path / "broken.json"
    broken.write_text("{")
    for file in (missing, broken):
        machine = this_machine(1, "avx2", read_rate, file)
        assert "assumed" in machine.origin
        assert machine.device.bandwidth == 20e9


def test_a_broken_file_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken = tmp_path / "broken.json"
    assert "rooftree probe" in this_machine(1, "avx2", read_rate, broken).origin
    assert not caplog.messages
    broken.write_text("{")
    assert "broken" in this_machine(1, "avx2", read_rate, broken).origin
    (message,) = caplog.messages
    assert str(broken) in message
    assert "run rooftree probe again" in message


def test_the_model_is_counted_as_it_is_stored(tiny_model: Callable[[str, str], str]) -> None:
    for dtype in ("F32", "F16", "Q8_0", "Q4_0"):
        checkpoint = open_checkpoint(tiny_model("llama", dtype))
        assert stored_architecture(checkpoint).weight_bytes() == checkpoint.weight_bytes
        costs = engine_costs(checkpoint, "int8")
        machine = this_machine(2, "avx2", read_rate, Path("none"))
        batch = batch_of([RequestTokens(1, 100)], costs.windows)
        estimate = step_clock(costs, machine.device, machine.efficiency).estimate(batch)
        assert 0 < estimate.bytes < 2 * checkpoint.weight_bytes
        # 2 layers, 2 KV heads of 16 with their scales, K and V.
        assert costs.kv_write_bytes == 2 * 2 * 2 * (16 + 4)


def test_the_real_limits_are_rates() -> None:
    isa = _native.supported_isas()[-1]
    assert _native.read_rate(isa, [0, 1], 1 << 20, 1) > 1e6
    assert _native.fp32_rate(isa, [0], 1000, 1) > 1e6
    assert all(rate > 1e6 for _, rate in _native.int8_rates(isa, [0], 1000, 1))
    with pytest.raises(ValueError, match="processor"):
        _native.fp32_rate(isa, [], 1000, 1)
    with pytest.raises(ValueError, match="rounds"):
        _native.int8_rates(isa, [0], 0, 1)
    with pytest.raises(ValueError, match="bytes"):
        _native.read_rate(isa, [0, 1], 100, 1)
    with pytest.raises(ValueError, match="not available"):
        _native.read_rate("no such", [0], 1 << 20, 1)


@pytest.mark.parametrize("rows", [16, 16 * 5000])
@pytest.mark.parametrize("threads", [1, 3])
def test_weights_are_read_where_they_lie(rows: int, threads: int) -> None:
    """Also a single tile, which is less than a share for each thread."""
    memory, pool, isa = _native.WeightMemory(), _native.ThreadPool(1), _native.supported_isas()[-1]
    with pytest.raises(ValueError, match="too few bytes"):
        memory.read_rate(isa, [0] * threads, 1 << 20, 1)
    matrix = _native.PackedMatrix(0, rows, 16, memory)
    matrix.pack_rows(0, 0, np.zeros(rows * 64, np.uint8), pool)
    assert 1e6 < memory.read_rate(isa, [0] * threads, 1 << 20, 2) < 1e13
    for processors, num_bytes, tries in (([], 1 << 20, 1), ([0], 100, 1), ([0], 1 << 20, 0)):
        with pytest.raises(ValueError, match="processor"):
            memory.read_rate(isa, processors, num_bytes, tries)


def test_an_executor_reads_its_weights(tiny_model: Callable[[str, str], str]) -> None:
    checkpoint = open_checkpoint(tiny_model("llama", "Q8_0"))
    executor = CPUExecutor(checkpoint, max_num_seqs=1, max_num_batched_tokens=16, max_model_len=32, threads=2)
    assert executor.read_rate(1 << 20, 2) > 1e6
    executor.close()
    with pytest.raises(EngineDeadError):
        executor.read_rate(1 << 20, 2)


def test_threads_that_the_system_refuses_are_an_error_not_the_end() -> None:
    program = """
import resource
from rooftree import _native
taken = 1024 * next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmSize"))
resource.setrlimit(resource.RLIMIT_AS, (taken + (64 << 20),) * 2)
try:
    _native.fp32_rate(_native.supported_isas()[-1], [0] * 500, 10, 1)
except ValueError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert run.stdout == "the system refuses to start 500 threads\n", run.stderr


def test_the_processor_has_a_name(tmp_path: Path) -> None:
    info = tmp_path / "cpuinfo"
    info.write_text("processor\t: 0\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n")
    assert processor_name(info) == "AMD EPYC (family 25, model 17)"
    info.write_text("processor\t: 0\n")
    assert processor_name(info)
    assert memory_bytes() > 1 << 20
