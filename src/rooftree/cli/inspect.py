"""rooftree inspect"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rooftree.cli.engine_options import QUANTIZATION
from rooftree.cli.fetching import fetch_checkpoint
from rooftree.errors import ModelError

if TYPE_CHECKING:
    from rooftree.checkpoint.base import Checkpoint
    from rooftree.checkpoint.quantization import Quantization
    from rooftree.specs.architecture import Architecture

HELP = """Show what MODEL (default: smollm2) is made of. Reads no weights.

A config.json alone will do, and so will a model that this engine does not run.

\b
  rooftree inspect smollm2
  rooftree inspect model.gguf --json
  rooftree inspect config.json
  rooftree inspect hf:org/name --quantization q4_0
"""


@click.command(help=HELP)
@click.argument("model", default="smollm2")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with every layer.")
@QUANTIZATION
def command(model: str, as_json: bool, quantization: Quantization | None) -> None:
    """See HELP."""
    facts = inspect_model(model) if quantization is None else inspect_quantized(model, quantization)
    click.echo(json.dumps(facts, indent=2) if as_json else _table(facts))


def inspect_model(model: str) -> dict[str, Any]:
    """The facts of a model, however it is named.

    Raises:
        ModelError: it can neither be opened nor counted.
    """
    path = Path(model).expanduser()
    if path.suffix == ".json" and path.is_file():
        return _described(path, None)
    try:
        return describe(fetch_checkpoint(model))
    except ModelError as error:
        try:
            return _described(path, f"this engine does not run it ({error})")
        except ModelError as not_counted:
            # Of a model that it knows the second complaint says more; else the first does.
            raise (error if not path.exists() else not_counted) from None


def inspect_quantized(model: str, scheme: Quantization) -> dict[str, Any]:
    """The facts of a model as ``--quantization`` would load it.

    Raises:
        ModelError: it cannot be opened.
        ConfigError: none of its weights can be quantised.
    """
    from rooftree.checkpoint.quantize_on_load import quantized

    return describe(quantized(fetch_checkpoint(model), scheme))


def _described(path: Path, note: str | None) -> dict[str, Any]:
    """The facts of a model by its configuration alone."""
    from rooftree.cli.model_facts import model_facts

    architecture = _architecture(path)
    kind = "gguf" if path.suffix == ".gguf" else "config"
    facts = {"name": path.stem, "path": str(path), "format": kind, **model_facts(architecture)}
    return facts if note is None else facts | {"notes": [*facts["notes"], note]}


def _architecture(path: Path) -> Architecture:
    from rooftree.checkpoint.architectures.parse import read_architecture
    from rooftree.checkpoint.gguf_architecture import read_gguf_architecture

    return read_gguf_architecture(path) if path.suffix == ".gguf" else read_architecture(path)


def describe(checkpoint: Checkpoint) -> dict[str, Any]:
    """The facts of a model that the engine runs, sizes in bytes."""
    from rooftree.cli.model_facts import model_facts
    from rooftree.specs.model_architecture import architecture_of

    spec = checkpoint.spec
    bytes_by_type: Counter[str] = Counter()
    bytes_by_layer: Counter[int | None] = Counter()
    for name, tensor in checkpoint.tensors.items():
        bytes_by_type[tensor.dtype] += tensor.num_bytes
        bytes_by_layer[_layer_of(name)] += tensor.num_bytes
    most = bytes_by_type.most_common()
    facts = model_facts(architecture_of(spec), bytes_by_layer)
    return {
        "name": checkpoint.name,
        "path": checkpoint.path,
        "format": checkpoint.format,
        "family": spec.family,
        **facts,
        "weight_format": most[0][0] if most else None,
        "bytes_by_type": dict(most),
        "intermediate_size": spec.intermediate_size,
        "heads": spec.num_heads,
        "kv_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "sliding_windows": sorted({window for window in spec.windows if window is not None}),
        "rope": {"kind": spec.rope.kind, "theta": spec.rope.theta, "factor": spec.rope.factor},
        "chat_template": checkpoint.text.chat_template is not None,
        "notes": [*facts["notes"], *checkpoint.notices],
    }


def _layer_of(name: str) -> int | None:
    parts = name.split(".")
    return int(parts[2]) if parts[:2] == ["model", "layers"] else None


def _table(facts: dict[str, Any]) -> str:
    shown = {name: value for name, value in facts.items() if name not in ("layer_detail", "notes")}
    width = max(map(len, shown))
    lines = [f"{name.replace('_', ' '):<{width}}  {_cell(value)}" for name, value in shown.items()]
    lines += ["", *_layers(facts["layer_detail"])]
    lines += [f"note: {note}" for note in facts["notes"]]
    return "\n".join(lines)


def _layers(detail: list[dict[str, Any]]) -> list[str]:
    """A line for each kind of layer."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for layer in detail:
        parts = (_part(layer[name]) for name in ("mixer", "feed_forward") if layer[name])
        kinds.setdefault(", ".join(parts), []).append(layer)
    return [
        f"{_numbers([layer['layer'] for layer in layers])}: {kind}; "
        f"{_cell(sum(layer['weight_bytes'] for layer in layers))} bytes of weights"
        for kind, layers in kinds.items()
    ]


def _numbers(layers: list[int]) -> str:
    """``layer 3``, ``layers 0 to 29``, or those of a few and how many there are."""
    if len(layers) == 1:
        return f"layer {layers[0]}"
    if layers == list(range(layers[0], layers[-1] + 1)):
        return f"layers {layers[0]} to {layers[-1]}"
    shown = ", ".join(map(str, layers[:4]))
    return f"{len(layers)} layers ({shown}{', ...' if len(layers) > 4 else ''})"


def _part(part: dict[str, Any]) -> str:
    """Kind and numbers; of what is true or false, only what is true."""
    told = (
        key.replace("_", " ") if value is True else f"{key.replace('_', ' ')} {_cell(value)}"
        for key, value in part.items()
        if value and key != "kind" and not (key == "window_kind" and part["window"] is None)
    )
    return f"{part['kind']} ({', '.join(told)})"


def _cell(value: Any) -> str:
    if value is None:
        return "not stated"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_cell(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(_cell, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
