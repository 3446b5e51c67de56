"""rooftree inspect"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from rooftree.cli.fetching import fetch_checkpoint

if TYPE_CHECKING:
    from rooftree.checkpoint.base import Checkpoint

HELP = """Show what MODEL (default: smollm2) is made of. Reads no weights.

\b
  rooftree inspect smollm2
  rooftree inspect model.gguf --json
"""


@click.command(help=HELP)
@click.argument("model", default="smollm2")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def command(model: str, as_json: bool) -> None:
    """See HELP."""
    facts = describe(fetch_checkpoint(model))
    click.echo(json.dumps(facts, indent=2) if as_json else _table(facts))


def describe(checkpoint: Checkpoint) -> dict[str, Any]:
    """The facts, sizes in bytes."""
    spec = checkpoint.spec
    bytes_by_type: Counter[str] = Counter()
    for tensor in checkpoint.tensors.values():
        bytes_by_type[tensor.dtype] += tensor.num_bytes
    return {
        "name": checkpoint.name,
        "path": checkpoint.path,
        "format": checkpoint.format,
        "family": spec.family,
        "parameters": spec.num_parameters,
        "weight_bytes": checkpoint.weight_bytes,
        "bytes_by_type": dict(bytes_by_type.most_common()),
        "kv_bytes_per_token": {"fp16": spec.kv_bytes_per_token(2), "fp32": spec.kv_bytes_per_token(4)},
        "context": spec.max_position_embeddings,
        "layers": spec.num_layers,
        "hidden_size": spec.hidden_size,
        "intermediate_size": spec.intermediate_size,
        "heads": spec.num_heads,
        "kv_heads": spec.num_kv_heads,
        "head_dim": spec.head_dim,
        "vocab_size": spec.vocab_size,
        "tied_embeddings": spec.tie_word_embeddings,
        "sliding_windows": sorted({window for window in spec.windows if window is not None}),
        "rope": {"kind": spec.rope.kind, "theta": spec.rope.theta, "factor": spec.rope.factor},
        "chat_template": checkpoint.text.chat_template is not None,
    }


def _table(facts: dict[str, Any]) -> str:
    width = max(map(len, facts))
    return "\n".join(f"{name.replace('_', ' '):<{width}}  {_cell(value)}" for name, value in facts.items())


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_cell(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(_cell, value)) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value)
