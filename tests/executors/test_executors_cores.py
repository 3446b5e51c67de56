"""Counting physical cores from a made-up machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rooftree.engine.executors.cores import physical_cores


@pytest.fixture
def allow(monkeypatch: pytest.MonkeyPatch):
    """Makes this process one that may run on the given processors."""

    def set_allowed(*cpus: int) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(cpus))

    return set_allowed


def machine(folder: Path, siblings: dict[int, str]) -> Path:
    for cpu, text in siblings.items():
        topology = folder / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{text}\n")
    return folder


TWO_BY_TWO = {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}


@pytest.mark.parametrize(
    ("cpus", "cores"), [((0, 1, 2, 3), 2), ((0, 2), 1), ((0, 1), 2), ((3,), 1), ((1, 2, 3), 2)]
)
def test_hardware_threads_of_a_core_count_once(tmp_path: Path, allow, cpus: tuple[int, ...], cores: int):
    allow(*cpus)
    assert physical_cores(machine(tmp_path, TWO_BY_TWO), tmp_path / "absent") == cores


def test_ranges_of_siblings(tmp_path: Path, allow):
    allow(0, 1, 2, 3)
    siblings = {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}
    assert physical_cores(machine(tmp_path, siblings), tmp_path / "absent") == 2


def test_without_a_topology_each_processor_is_a_core(tmp_path: Path, allow):
    allow(4, 5, 6)
    assert physical_cores(tmp_path / "nothing", tmp_path / "absent") == 3


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("max 100000", 4),
        ("400000 100000", 4),
        ("800000 100000", 4),
        ("250000 100000", 2),
        ("100000 100000", 1),
        ("50000 100000", 1),
        ("", 4),
        ("nonsense", 4),
        ("x y", 4),
    ],
)
def test_a_quota_lowers_the_number_and_bad_files_are_ignored(tmp_path: Path, allow, text: str, cores: int):
    allow(0, 1, 2, 3)
    (tmp_path / "cpu.max").write_text(text)
    assert physical_cores(tmp_path / "nothing", tmp_path / "cpu.max") == cores


def test_this_machine_has_a_core():
    assert 1 <= physical_cores() <= os.cpu_count()
