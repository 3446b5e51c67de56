"""Where a benchmark ran: what any figure must be read with."""

from __future__ import annotations

import os
import platform
from datetime import date
from pathlib import Path
from typing import TypedDict


class Machine(TypedDict):
    """Facts of the machine; ``load`` is the one-minute average when asked, which should be near 0."""

    cpu: str
    cpus: int
    isas: list[str]
    memory_gib: float
    load: float
    system: str
    date: str


def machine() -> Machine:
    """The machine that this process runs on."""
    from rooftree import _native

    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return Machine(
        cpu=_cpu_name(),
        cpus=len(os.sched_getaffinity(0)),
        isas=_native.supported_isas(),
        memory_gib=round(pages * page / 2**30, 1),
        load=round(os.getloadavg()[0], 2),
        system=f"{platform.system()} {platform.machine()}",
        date=date.today().isoformat(),
    )


def describe(facts: Machine) -> str:
    """One line for people."""
    return (
        f"{facts['cpu']}, {facts['cpus']} CPUs ({', '.join(facts['isas'])}), {facts['memory_gib']} GiB, "
        f"{facts['date']}, load {facts['load']} at the start"
    )


def _cpu_name() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    family = {line.partition(":")[0].strip(): line.partition(":")[2].strip() for line in lines[:30]}
    name = next(names, platform.processor() or platform.machine())
    return (
        f"{name} (family {family['cpu family']}, model {family['model']})" if "cpu family" in family else name
    )
