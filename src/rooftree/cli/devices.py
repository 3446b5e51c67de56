"""rooftree devices"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rooftree.specs.device import DeviceSpec

HELP = """List the accelerators that Rooftree can plan for, with their dense rates.

\b
  rooftree devices
  rooftree devices this-machine --json  what 'rooftree probe' measured here
  rooftree devices H100 --json          one device, every figure with its source
  rooftree devices --file mine.toml     with your own devices, and your prices

A file holds [[device]] entries with name, memory_gib, bandwidth_gb_per_s and peak_tflops (bf16, fp8, ...),
and whatever else `rooftree devices NAME --json` shows under "as_file".
"""

_DTYPES = ("bf16", "fp8", "fp4", "int8")
_WIDTH = 118


@click.command(help=HELP)
@click.argument("name", required=False)
@click.option(
    "--file",
    "user_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="TOML or JSON with your devices.",
)
@click.option("--json", "as_json", is_flag=True, help='One JSON object: {"devices": [...]}.')
def command(name: str | None, user_file: Path | None, as_json: bool) -> None:
    """See HELP."""
    from rooftree.roofline.machine import known_machine_file
    from rooftree.specs.catalogue import find_device, known_devices

    probed = known_machine_file()
    devices = known_devices(user_file, probed) if name is None else (find_device(name, user_file, probed),)
    if as_json:
        click.echo(json.dumps({"devices": [describe(device) for device in devices]}, indent=2))
    else:
        _print_table(devices)


def describe(device: DeviceSpec) -> dict[str, Any]:
    """Every figure in bytes, bytes/s and FLOP/s, with its source; null where it is not known."""
    from rooftree.specs.device_file import device_document

    facts = dataclasses.asdict(device)
    facts["total_memory_bytes"] = device.total_memory_bytes
    facts["ridge_flop_per_byte"] = {dtype: round(device.ridge(dtype), 1) for dtype in device.peak_flops}
    facts["as_file"] = device_document(device)
    return facts


def _print_table(devices: tuple[DeviceSpec, ...]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("device", no_wrap=True)
    for heading in ("memory GiB", "GB/s", *(f"{dtype} T" for dtype in _DTYPES), "FLOP/B", "link GB/s", "W"):
        table.add_column(heading, justify="right")
    table.add_column("certainty", no_wrap=True)
    for device in devices:
        table.add_row(*_row(device))
    # Wider than a pipe's 80 columns: figures are never cut.
    console = Console(width=max(Console().width, _WIDTH))
    console.print(table)
    console.print(
        "T: dense TFLOPS (int8: TOPS). FLOP/B: ridge at bf16 (else fp16, fp32). link: one direction.\n"
        "rooftree devices NAME --json gives every figure with its source.",
        style="dim",
    )


def _row(device: DeviceSpec) -> list[str]:
    base = next((dtype for dtype in ("bf16", "fp16", "fp32") if dtype in device.peak_flops), None)
    return [
        device.name,
        f"{device.total_memory_bytes / 2**30:.1f}",
        f"{device.bandwidth / 1e9:,.0f}",
        *(_tera(device.peak_flops.get(dtype)) for dtype in _DTYPES),
        "-" if base is None else f"{device.ridge(base):.0f}",
        _link(device),
        "-" if device.tdp_watts is None else f"{device.tdp_watts:.0f}",
        device.certainty.split(":")[0].split(";")[0].split(" ")[0],
    ]


def _link(device: DeviceSpec) -> str:
    if device.link is not None:
        return f"{device.link.bytes_per_second / 1e9:,.0f}"
    return "-" if device.pcie_bytes_per_second is None else "PCIe"


def _tera(peak: float | None) -> str:
    """In 1e12 per second; the small rates of processors with two decimals."""
    return "-" if peak is None else f"{peak / 1e12:,.{0 if peak >= 1e13 else 2}f}"
