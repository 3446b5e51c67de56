"""The catalogue: dense rates, audited; users' own devices; finding one by name."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooftree.errors import ConfigError
from rooftree.specs.catalogue import find_device, known_devices, normal_name
from rooftree.specs.device import DeviceSpec, LinkSpec
from rooftree.specs.device_audit import problems
from rooftree.specs.device_file import device_document, devices_from, read_devices

# Dense TFLOPS of the matrix units as their makers state them (bf16, fp8, fp4, int8), GB/s, GiB.
DENSE: dict[str, tuple[float, float | None, float | None, float | None, float, float]] = {
    "A10": (125, None, None, 250, 600, 24),
    "A10G": (70, None, None, 140, 600, 24),
    "L4": (121, 242, None, 242, 300, 24),
    "L40S": (362.05, 733, None, 733, 864, 48),
    "A100 40GB SXM": (312, None, None, 624, 1555, 40),
    "A100 40GB PCIe": (312, None, None, 624, 1555, 40),
    "A100 80GB SXM": (312, None, None, 624, 2039, 80),
    "A100 80GB PCIe": (312, None, None, 624, 1935, 80),
    "H100 SXM": (989.4, 1978.9, None, 1978.9, 3350, 80),
    "H100 PCIe": (756.5, 1513, None, 1513, 2000, 80),
    "H100 NVL": (835.5, 1671, None, 1671, 3938, 94),
    "H200 SXM": (989, 1978, None, 1978, 4800, 141),
    "H20": (148, 296, None, 296, 4000, 96),
    "B200 SXM": (2250, 4500, 9000, 4500, 8000, 180),
    "GB200": (2500, 5000, 10000, 5000, 8000, 185),
    "B300 SXM": (2250, 4500, 14000, 153.5, 7750, 268.6),
    "GB300": (2500, 5000, 15000, 165, 8000, 277.5),
    "RTX PRO 6000": (467.8, 935.6, 1871.2, 935.6, 1792, 95.6),
    "RTX 4090": (165.2, 330.3, None, 660.6, 1008, 24),
    "RTX 5090": (209.6, 419.2, 1676.4, 838, 1792, 32),
    "MI300X": (1307.4, 2614.9, None, 2614.9, 5300, 192),
    "MI325X": (1307.4, 2614.9, None, 2614.9, 6000, 256),
    "MI355X": (2516, 5033, 10066, 5033, 8000, 288),
    "Gaudi 3": (1835, 1835, None, None, 3670, 128),
    "TPU v5e": (197, None, None, 393, 819, 16),
    "TPU v6e": (918, None, None, 1836, 1638, 32),
    "Trainium2": (667, 1299, None, None, 2900, 96),
    "Inferentia2": (190, 190, None, 380, 880, 32),
}

# GB/s of the direct link in one direction and in both, GB/s of PCIe, MiB that the driver reports.
LINKS: dict[str, tuple[float | None, float | None, float | None, int | None]] = {
    "NVIDIA A10": (None, None, 32, None),
    "NVIDIA A10G": (None, None, 32, None),
    "NVIDIA L4": (None, None, 32, None),
    "NVIDIA L40S": (None, None, 32, 46068),
    "NVIDIA A100 40GB SXM": (300, 600, 32, None),
    "NVIDIA A100 40GB PCIe": (300, 600, 32, None),
    "NVIDIA A100 80GB SXM": (300, 600, 32, None),
    "NVIDIA A100 80GB PCIe": (300, 600, 32, None),
    "NVIDIA H100 SXM": (450, 900, 64, None),
    "NVIDIA H100 PCIe": (300, 600, 64, None),
    "NVIDIA H100 NVL": (300, 600, 64, None),
    "NVIDIA H200 SXM": (450, 900, 64, None),
    "NVIDIA H20": (450, 900, 64, None),
    "NVIDIA B200 SXM": (900, 1800, 64, None),
    "NVIDIA GB200 (per GPU)": (900, 1800, 64, 189471),
    "NVIDIA B300 SXM": (900, 1800, 128, 275040),
    "NVIDIA GB300 (per GPU)": (900, 1800, 64, 284208),
    "NVIDIA RTX PRO 6000 Blackwell Server": (None, None, 64, 97887),
    "NVIDIA GeForce RTX 4090": (None, None, 32, None),
    "NVIDIA GeForce RTX 5090": (None, None, 64, None),
    "AMD Instinct MI300X": (448, 896, 64, None),
    "AMD Instinct MI325X": (448, 896, 64, None),
    "AMD Instinct MI355X": (537, 1075, 64, None),
    "Intel Gaudi 3 (OAM)": (600, 1200, 64, None),
    "Google TPU v5e": (200, 400, None, None),
    "Google TPU v6e (Trillium)": (400, 800, None, None),
    "AWS Trainium2": (None, None, None, None),
    "AWS Inferentia2": (None, None, None, None),
}

MINE: dict[str, Any] = {
    "name": "Mine",
    "memory_gib": 24,
    "bandwidth_gb_per_s": 500,
    "peak_tflops": {"bf16": 100, "fp8": 200},
}


@pytest.mark.parametrize("name", DENSE)
def test_dense_figures(name: str):
    device = find_device(name)
    bf16, fp8, fp4, int8, bandwidth, memory = DENSE[name]
    stated = {"bf16": bf16, "fp8": fp8, "fp4": fp4, "int8": int8}
    for dtype, tera in stated.items():
        assert device.peak_flops.get(dtype) == (None if tera is None else pytest.approx(tera * 1e12))
    assert device.bandwidth == pytest.approx(bandwidth * 1e9)
    assert device.memory_bytes == round(memory * 2**30)


@pytest.mark.parametrize("name", LINKS)
def test_links_and_memory_as_reported(name: str):
    device = find_device(name)
    link = device.link
    rates = (None, None) if link is None else (link.bytes_per_second, link.bidirectional_bytes_per_second)
    pcie, reported = device.pcie_bytes_per_second, device.driver_memory_bytes
    found = tuple(None if rate is None else rate / 1e9 for rate in (*rates, pcie))
    assert (*found, None if reported is None else reported / 2**20) == LINKS[name]
    # A maker may state one direction or both: the two must never be mixed.
    assert link is None or link.bidirectional_bytes_per_second == pytest.approx(
        2 * link.bytes_per_second, rel=0.01
    )


def test_every_device_is_checked_here():
    names = {device.name for device in known_devices()}
    assert names == {find_device(name).name for name in DENSE} == set(LINKS)


@pytest.mark.parametrize("device", known_devices(), ids=lambda device: device.name)
def test_catalogue_is_honest(device: DeviceSpec):
    assert problems(device) == []
    # An exception that no rule needs hides the next mistake.
    bare = dataclasses.replace(device, exceptions={})
    assert {problem.split(":")[0] for problem in problems(bare)} == set(device.exceptions)
    stated = [f.name for f in dataclasses.fields(device) if f.name in device.sources]
    figures = ["peak_flops", "bandwidth", "memory_bytes", "driver_memory_bytes", "link", "tdp_watts"]
    figures += ["pcie_bytes_per_second", "decode_bandwidth_fraction", "prefill_flops_fraction"]
    assert [name for name in figures if getattr(device, name) is not None] == [
        f for f in figures if f in stated
    ]
    assert device.certainty.split(":")[0].split(";")[0].split(" ")[0] in ("high", "medium", "low")
    assert device.price_per_hour is None


@pytest.mark.parametrize(
    ("name", "dtype", "ridge"),
    [
        ("H100 SXM", "fp16", 295),
        ("H100 SXM", "fp8", 591),
        ("H200 SXM", "fp8", 412),
        ("B200 SXM", "fp8", 562),
        ("L40S", "fp16", 419),
    ],
)
def test_ridge_points(name: str, dtype: str, ridge: int):
    assert find_device(name).ridge(dtype) == pytest.approx(ridge, abs=0.6)


def test_formats_that_chips_lack():
    with pytest.raises(ConfigError, match="NVIDIA A100 80GB SXM has no fp8"):
        find_device("A100").flops("fp8")
    # INT8 exists on B300, thirty times slower than on B200.
    assert find_device("B300").flops("int8") * 29 < find_device("B200").flops("int8")
    assert find_device("Gaudi 3").flops("fp16") < find_device("Gaudi 3").flops("bf16")


def test_memory_is_what_the_driver_reports_where_known():
    l40s = find_device("L40S")
    assert l40s.total_memory_bytes == 46_068 * 2**20 < l40s.memory_bytes
    h100 = find_device("H100")
    assert h100.total_memory_bytes == h100.memory_bytes == 80 * 2**30


def test_links_have_both_directions():
    h100, bridge = find_device("H100").link, find_device("A100 PCIe").link
    assert h100 == LinkSpec("nvlink", 450e9, 900e9, 8)
    assert bridge == LinkSpec("nvlink-bridge", 300e9, 600e9, 2)
    assert find_device("L40S").link is None
    assert find_device("L40S").pcie_bytes_per_second == 32e9
    gb200 = find_device("GB200").link
    assert gb200 is not None
    assert gb200.max_devices == 72


# Names.


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("h100", "NVIDIA H100 SXM"),
        ("h100_sxm", "NVIDIA H100 SXM"),
        ("NVIDIA H100-SXM-80GB", "NVIDIA H100 SXM"),
        ("nvidia h100 pcie 80gb", "NVIDIA H100 PCIe"),
        ("NVIDIA H100-NVL-94GB", "NVIDIA H100 NVL"),
        ("A100 SXM 80GB", "NVIDIA A100 80GB SXM"),
        ("A100-SXM4-40GB", "NVIDIA A100 40GB SXM"),
        ("AMD Instinct MI300X-NPS1-SPX-192GB-750W", "AMD Instinct MI300X"),
        ("gb200", "NVIDIA GB200 (per GPU)"),
        ("rtx4090", "NVIDIA GeForce RTX 4090"),
        ("trn2", "AWS Trainium2"),
    ],
)
def test_names(name: str, found: str):
    assert find_device(name).name == found


def test_no_name_means_two_devices():
    keys = [spelling for device in known_devices() for spelling in (device.name, *device.aliases)]
    for spelling in keys:
        find_device(spelling)
    owners = {(normal_name(s), d.name) for d in known_devices() for s in (d.name, *d.aliases)}
    assert len({key for key, _ in owners}) == len(owners)


@pytest.mark.parametrize(
    ("name", "like"), [("h1000", "H100"), ("A100 60GB", "A100"), ("", "L40S"), ("???", "L40S")]
)
def test_unknown_names_show_similar_ones(name: str, like: str):
    with pytest.raises(ConfigError, match=like):
        find_device(name)


# The user's own.


def write(tmp_path: Path, *devices: dict[str, Any]) -> Path:
    file = tmp_path / "mine.json"
    file.write_text(json.dumps({"device": list(devices)}))
    return file


def test_toml_and_json_read_the_same(tmp_path: Path):
    toml = tmp_path / "mine.toml"
    toml.write_text(
        '[[device]]\nname = "Mine"\nmemory_gib = 24\nbandwidth_gb_per_s = 500\n'
        "peak_tflops = { bf16 = 100, fp8 = 200 }\n"
    )
    (from_toml,) = read_devices(toml)
    (from_json,) = read_devices(write(tmp_path, MINE))
    assert from_toml.bandwidth == 500e9
    assert from_toml.memory_bytes == 24 * 2**30
    assert from_toml.sources["bandwidth"] == str(toml)
    assert dataclasses.replace(from_toml, sources={}) == dataclasses.replace(from_json, sources={})


def test_own_devices_come_beside_and_before(tmp_path: Path):
    cheap = {**MINE, "name": "nvidia H100-SXM", "price_per_hour": 2.5}
    file = write(tmp_path, MINE, cheap)
    assert len(known_devices(file)) == len(known_devices()) + 1
    assert find_device("mine", file).name == "Mine"
    assert find_device("H100 SXM", file).price_per_hour == 2.5
    assert find_device("H100 SXM").price_per_hour is None


def test_an_own_alias_wins(tmp_path: Path):
    assert find_device("H100", write(tmp_path, {**MINE, "aliases": ["h100"]})).name == "Mine"


@pytest.mark.parametrize("device", known_devices(), ids=lambda device: device.name)
def test_written_devices_read_back(device: DeviceSpec):
    (again,) = devices_from(json.loads(json.dumps({"device": [device_document(device)]})), "x")
    assert again == device


@pytest.mark.parametrize(
    ("over", "word"),
    [
        ({"name": ...}, "name"),
        ({"name": ""}, "name"),
        ({"memory_gib": ...}, "memory_gib"),
        ({"memory_gib": 0}, "memory_gib"),
        ({"memory_gib": "24"}, "memory_gib"),
        ({"bandwidth_gb_per_s": -1}, "bandwidth_gb_per_s"),
        ({"bandwidth_gb_per_s": None}, "bandwidth_gb_per_s"),
        ({"peak_tflops": {}}, "peak_tflops"),
        ({"peak_tflops": {"fp7": 3}}, "fp7"),
        ({"peak_tflops": {"bf16": True}}, "peak_tflops"),
        ({"peak_flops": {"bf16": 3}}, "peak_flops"),
        ({"link": {"kind": "string", "gb_per_s": 4}}, "link.kind"),
        ({"link": {"kind": "nvlink"}}, "gb_per_s"),
        ({"link": {"kind": "nvlink", "gb_per_s": 4, "max_devices": 1}}, "max_devices"),
        ({"link": {"kind": "nvlink", "gb_per_s": 4, "bidirectional_gb_per_s": 4}}, "link"),
        ({"link": {"kind": "nvlink", "gb_per_s": 900}}, "link"),
        ({"aliases": "one"}, "aliases"),
        ({"tdp_watts": 0}, "tdp_watts"),
        ({"sources": {"bandwidth": "x"}}, "sources.bandwidth"),
        ({"measured": {"decode": [0.5, 1.2]}}, "decode_bandwidth_fraction"),
        ({"measured": {"decode": [0.5]}}, "measured.decode"),
        # Sparse figures beside a dense one, wrong units, driver's memory of another card.
        ({"peak_tflops": {"bf16": 100, "fp8": 400}}, "fp8"),
        ({"peak_tflops": {"bf16": 200, "fp8": 200}}, "fp8"),
        ({"peak_tflops": {"bf16": 100, "int8": 400}}, "int8"),
        ({"peak_tflops": {"bf16": 100, "fp4": 800}}, "fp4"),
        ({"bandwidth_gb_per_s": 0.5}, "ridge"),
        ({"bandwidth_gb_per_s": 5e8}, "ridge"),
        ({"driver_memory_mib": 48 * 1024}, "driver_memory"),
        ({"driver_memory_mib": 12 * 1024}, "driver_memory"),
    ],
)
def test_what_is_wrong_is_refused_by_name(tmp_path: Path, over: dict[str, Any], word: str):
    device = {key: value for key, value in (MINE | over).items() if value is not ...}
    with pytest.raises(ConfigError) as error:
        read_devices(write(tmp_path, device))
    assert "mine.json" in str(error.value)
    assert word in str(error.value)


def test_a_reason_excuses(tmp_path: Path):
    odd = {**MINE, "peak_tflops": {"bf16": 100, "fp8": 100}, "exceptions": {"fp8": "the same units"}}
    assert read_devices(write(tmp_path, odd))[0].flops("fp8") == 100e12


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"device": []}', '{"device": [3]}', '{"device": {}}', "[" * 9999]
)
def test_files_that_hold_no_devices(tmp_path: Path, text: str):
    file = tmp_path / "mine.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"mine\.json"):
        read_devices(file)


def test_missing_and_repeated(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"nowhere\.toml"):
        known_devices(tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match="twice"):
        read_devices(write(tmp_path, MINE, MINE))
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"bad\.toml"):
        read_devices(tmp_path / "bad.toml")


_VALUES = (
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=3) | st.just([]) | st.just({})
)


@given(st.dictionaries(st.sampled_from([*device_document(find_device("B200")), "x"]), _VALUES, max_size=4))
def test_hostile_entries_are_read_or_refused(over: dict[str, Any]):
    try:
        devices = devices_from({"device": [MINE | over]}, "x")
    except ConfigError:
        return
    assert problems(devices[0]) == []
