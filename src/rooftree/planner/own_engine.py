"""What Rooftree's own engine takes of its machine's memory, for plans on that machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rooftree.checkpoint.open import open_checkpoint
from rooftree.checkpoint.pull import KNOWN, find_pulled
from rooftree.engine.config import EngineConfig
from rooftree.engine.memory import wanted_model_len
from rooftree.engine.prediction import predict_footprint
from rooftree.errors import RooftreeError
from rooftree.roofline.memory import MemoryOptions


def own_options(
    model: str, asked: MemoryOptions, max_batched_tokens: int | None, max_sequences: int | None
) -> MemoryOptions:
    """``asked`` with what the engine does unless told otherwise: its largest step, its activations, the share
    of free memory that it gives to KV, and no runtime of a GPU.

    Activations are those that the engine itself would allocate where ``model`` is there and one that it
    runs, else those of the planner's formula. No weight is read and nothing is fetched.
    """
    usual = EngineConfig()
    config = EngineConfig(
        max_num_batched_tokens=max_batched_tokens or usual.max_num_batched_tokens,
        max_num_seqs=max_sequences or usual.max_num_seqs,
    )
    return replace(
        asked,
        max_batched_tokens=config.max_num_batched_tokens,
        max_sequences=config.max_num_seqs,
        runtime_bytes=0,
        block_tokens=config.block_size,
        kv_fraction=config.kv_cache_fraction,
        activation_bytes=_activation_bytes(model, config),
    )


def _activation_bytes(model: str, config: EngineConfig) -> int | None:
    file = find_pulled(model) if model in KNOWN else Path(model)
    if file is None or not file.exists():
        return None
    try:
        checkpoint = open_checkpoint(str(file))
        length = wanted_model_len(config, checkpoint.spec.max_position_embeddings)
        return predict_footprint(config, checkpoint, length).activation_bytes
    except RooftreeError:
        return None
