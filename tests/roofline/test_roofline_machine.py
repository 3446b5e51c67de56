"""The file of a probed machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rooftree.errors import ConfigError
from rooftree.roofline.efficiency import Efficiency, ProductRates
from rooftree.roofline.machine import (
    ProbedMachine,
    Quality,
    Setting,
    machine_document,
    machine_from,
    read_machine,
    write_machine,
)
from rooftree.specs.device import DeviceSpec
from rooftree.specs.device_file import read_devices

PROBED = ProbedMachine(
    setting=Setting("Some CPU (family 25, model 17)", 2, "avx2"),
    device=DeviceSpec(
        name="Some CPU (family 25, model 17)",
        aliases=("this-machine",),
        peak_flops={"fp32": 230e9, "int8": 950e9},
        bandwidth=33e9,
        memory_bytes=24 << 30,
        sources={"bandwidth": "read", "peak_flops": "computed", "memory_bytes": "told"},
        certainty="high: measured",
    ),
    efficiency=Efficiency(
        weight_bandwidth=0.9,
        layer_seconds=2e-6,
        prefill_attention=1.3,
        products=(ProductRates("q4_0", (1, 8), (0.1, 0.5)),),
    ),
    quality=Quality(50, 0.02, 0.06),
    probed="2026-01-02",
)


def test_the_file_gives_back_what_was_written(tmp_path: Path) -> None:
    file = tmp_path / "new" / "machine.json"
    write_machine(PROBED, file)
    assert read_machine(file) == PROBED
    assert read_devices(file) == (PROBED.device,)
    assert [path.name for path in file.parent.iterdir()] == ["machine.json"]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("format", "rooftree-machine/0", "is not a rooftree-machine/1 file"),
        ("device", [], "must hold a list 'device'"),
        ("setting", {"cpu": "x", "isa": "avx2"}, "threads"),
        ("efficiency", {"weight_bandwidth": "much"}, "float"),
        ("quality", None, "Quality|object"),
        ("probed", 2026, "str"),
    ],
)
def test_a_field_that_is_wrong_is_named(key: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        machine_from(machine_document(PROBED) | {key: value}, "here")


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 5000, '"x"'])
def test_what_is_no_such_file_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "machine.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"machine\.json"):
        read_machine(file)


def test_efficiencies_that_cannot_be_are_refused() -> None:
    document = json.loads(json.dumps(machine_document(PROBED)))
    document["efficiency"]["weight_bandwidth"] = 0.0
    with pytest.raises(ConfigError, match="weight_bandwidth"):
        machine_from(document, "here")
    document = json.loads(json.dumps(machine_document(PROBED)))
    document["efficiency"]["products"][0]["rows"] = [8, 1]
    with pytest.raises(ConfigError, match="rows"):
        machine_from(document, "here")
