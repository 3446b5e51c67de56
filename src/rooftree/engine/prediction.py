"""What an engine would allocate, told before it is built: KV blocks and the longest request.

The decision is that of ``engine.memory``, and the sizes are those of the recorder that builds the engine's
program; neither is written twice. Every layer keeps every token of a request, also where a sliding window
lets it see less.
"""

from __future__ import annotations

import msgspec

from rooftree import _native
from rooftree.checkpoint.base import Checkpoint
from rooftree.engine.config import EngineConfig
from rooftree.engine.executors.cores import physical_cores
from rooftree.engine.executors.cpu import choose_isa, tables_bytes
from rooftree.engine.kv_cache_dtype import kv_cache_dtype
from rooftree.engine.memory import Footprint, MemoryPlan, plan_memory, wanted_model_len
from rooftree.kernels.cpu import KV_FORMAT_CODES, SizingRecorder
from rooftree.models.decoder import decoder, load_weights


def predict_memory(config: EngineConfig, checkpoint: Checkpoint, available: int | None) -> MemoryPlan:
    """The memory plan of the native executor with these options. ``num_blocks`` and ``max_model_len`` are
    those that the engine takes.

    Args:
        checkpoint: with ``config.quantization`` applied; no weight is read.
        available: bytes free once the weights are loaded; None if unknown.

    Raises:
        ConfigError: as at the engine's start.
    """
    config = msgspec.structs.replace(config, kv_cache_dtype=kv_cache_dtype(config, checkpoint))
    length = wanted_model_len(config, checkpoint.spec.max_position_embeddings)
    footprint = predict_footprint(config, checkpoint, length)
    return plan_memory(config, checkpoint.spec.max_position_embeddings, footprint, available)


def predict_footprint(config: EngineConfig, checkpoint: Checkpoint, max_model_len: int) -> Footprint:
    """Bytes that the native executor would hold, from shapes and formats alone."""
    spec = checkpoint.spec
    recorder = SizingRecorder(
        _native.ThreadPool(1),
        choose_isa(config.isa),
        heads=spec.num_heads,
        kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
    )
    recorder.sample(decoder(recorder, spec, load_weights(recorder, spec, checkpoint.tensors)))
    arena = recorder.arena_bytes(config.max_num_batched_tokens, config.max_num_seqs)
    threads = config.threads or physical_cores()
    return Footprint(
        weight_bytes=recorder.weight_bytes,
        activation_bytes=arena
        + tables_bytes(spec, config.max_num_seqs, max_model_len, config.block_size, threads),
        kv_bytes_per_block=_native.KvCache.bytes_per_block(
            spec.num_layers,
            spec.num_kv_heads,
            spec.head_dim,
            config.block_size,
            KV_FORMAT_CODES[kv_cache_dtype(config, checkpoint)],
        ),
    )
