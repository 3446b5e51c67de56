"""Counting physical cores, and choosing among them, on made-up machines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rooftree.engine.executors.cores import physical_cores, spread_processors

CPUS = "sys/devices/system/cpu"
GROUPS = "sys/fs/cgroup"


@pytest.fixture
def allow(monkeypatch: pytest.MonkeyPatch):
    """Makes this process one that may run on the given processors."""

    def set_allowed(*cpus: int) -> None:
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(cpus))

    return set_allowed


def machine(root: Path, siblings: dict[int, str] | None = None, files: dict[str, str] | None = None) -> Path:
    topology = {
        f"{CPUS}/cpu{cpu}/topology/thread_siblings_list": f"{text}\n"
        for cpu, text in (siblings or {}).items()
    }
    for name, text in (topology | (files or {})).items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


TWO_BY_TWO = {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}


@pytest.mark.parametrize(
    ("cpus", "cores"), [((0, 1, 2, 3), 2), ((0, 2), 1), ((0, 1), 2), ((3,), 1), ((1, 2, 3), 2)]
)
def test_hardware_threads_of_a_core_count_once(tmp_path: Path, allow, cpus: tuple[int, ...], cores: int):
    allow(*cpus)
    assert physical_cores(machine(tmp_path, TWO_BY_TWO)) == cores


def test_ranges_of_siblings(tmp_path: Path, allow):
    allow(0, 1, 2, 3)
    assert physical_cores(machine(tmp_path, {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"})) == 2


@pytest.mark.parametrize(
    ("siblings", "order"),
    [
        (TWO_BY_TWO, [0, 1, 2, 3, 0]),
        ({0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3"}, [0, 2, 1, 3, 0]),
        ({0: "0-1", 1: "0-1", 2: "2", 3: "3"}, [0, 2, 3, 1, 0]),
        ({}, [0, 1, 2, 3, 0]),
    ],
)
def test_threads_get_cores_of_their_own_first(
    tmp_path: Path, allow, siblings: dict[int, str], order: list[int]
):
    allow(0, 1, 2, 3)
    root = machine(tmp_path, siblings)
    for threads in range(6):
        assert spread_processors(threads, root) == order[:threads]


@pytest.mark.parametrize("cpus", [1, 2, 3, 256])
def test_without_a_topology_each_processor_is_a_core(tmp_path: Path, allow, cpus: int):
    allow(*range(4, 4 + cpus))
    assert physical_cores(tmp_path) == cpus


QUOTAS = [
    ("max 100000", 4),
    ("400000 100000", 4),
    ("800000 100000", 4),
    ("250000 100000", 2),
    ("150000 100000", 1),
    ("100000 100000", 1),
    ("50000 100000", 1),
    ("100000 50000", 2),
    ("100000 0", 4),
    ("", 4),
    ("nonsense", 4),
    ("x y", 4),
    ("-1 100000", 4),
]


@pytest.mark.parametrize(("text", "cores"), QUOTAS)
@pytest.mark.parametrize("place", ["v2", "v2 at the root", "hybrid", "v1", "v1 in a container"])
def test_a_quota_lowers_the_number_and_bad_files_are_ignored(
    tmp_path: Path, allow, text: str, cores: int, place: str
):
    allow(0, 1, 2, 3)
    quota, _, period = text.partition(" ")
    files = {
        "v2": {"proc/self/cgroup": "0::/a/b\n", f"{GROUPS}/a/b/cpu.max": text},
        "v2 at the root": {"proc/self/cgroup": "0::/not/here\n", f"{GROUPS}/cpu.max": text},
        "hybrid": {
            "proc/self/cgroup": "3:memory:/m\n1:name=systemd:/\n0::/s\n",
            f"{GROUPS}/unified/s/cpu.max": text,
        },
        "v1": {
            "proc/self/cgroup": "5:cpuacct,cpu:/a\n4:memory:/\n",
            f"{GROUPS}/cpu/a/cpu.cfs_quota_us": f"{quota}\n",
            f"{GROUPS}/cpu/a/cpu.cfs_period_us": f"{period}\n",
        },
        "v1 in a container": {
            "proc/self/cgroup": "5:cpu,cpuacct:/docker/0123\n",
            f"{GROUPS}/cpu/cpu.cfs_quota_us": f"{quota}\n",
            f"{GROUPS}/cpu/cpu.cfs_period_us": f"{period}\n",
        },
    }[place]
    assert physical_cores(machine(tmp_path, files=files)) == cores


def test_the_tightest_of_all_groups_around_counts(tmp_path: Path, allow):
    allow(*range(16))
    files = {
        "proc/self/cgroup": "0::/pod/main\n",
        f"{GROUPS}/cpu.max": "1200000 100000",
        f"{GROUPS}/pod/cpu.max": "350000 100000",
        f"{GROUPS}/pod/main/cpu.max": "max 100000",
    }
    assert physical_cores(machine(tmp_path, files=files)) == 3


def test_affinity_topology_and_quota_together(tmp_path: Path, allow):
    allow(0, 1, 2, 3)
    files = {"proc/self/cgroup": "0::/\n", f"{GROUPS}/cpu.max": "300000 100000"}
    assert physical_cores(machine(tmp_path, TWO_BY_TWO, files)) == 2


def test_this_machine_has_a_core():
    assert 1 <= physical_cores() <= os.cpu_count()


def test_a_process_tied_to_one_processor_takes_one_thread():
    cpu = min(os.sched_getaffinity(0))
    program = (
        f"import os; os.sched_setaffinity(0, {{{cpu}}}); "
        "from rooftree.engine.executors.cores import physical_cores; print(physical_cores())"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"1\n"
