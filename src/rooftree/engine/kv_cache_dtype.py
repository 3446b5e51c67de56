"""What the KV cache is stored in where nobody chose."""

from __future__ import annotations

from rooftree import _native
from rooftree.checkpoint.base import Checkpoint
from rooftree.engine.config import EngineConfig, KVCacheDType
from rooftree.engine.executors.cpu import choose_isa


def kv_cache_dtype(config: EngineConfig, checkpoint: Checkpoint) -> KVCacheDType:
    """The dtype that ``config`` names; for ``auto`` bf16 where the kernels multiply the model in bf16 anyway,
    else fp16.

    Both take two bytes. bf16 is then the faster one and has the range that the model was trained with; fp16
    has three more bits of mantissa, which float arithmetic makes use of.

    Args:
        checkpoint: with ``config.quantization`` applied.

    Raises:
        ConfigError: an instruction set that this machine or build does not run.
    """
    if config.kv_cache_dtype != "auto":
        return config.kv_cache_dtype
    if config.executor == "reference" or not _native.multiplies_bf16(choose_isa(config.isa)):
        return "fp16"
    matrices = {tensor.dtype for tensor in checkpoint.tensors.values() if len(tensor.shape) == 2}
    return "bf16" if matrices == {"BF16"} else "fp16"
