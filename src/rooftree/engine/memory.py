"""The memory budget at start-up: from free bytes to KV blocks and a context length, or a refusal."""

from __future__ import annotations

from dataclasses import dataclass

from rooftree.engine.config import EngineConfig
from rooftree.errors import ConfigError

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes that a loaded executor holds or needs; see ``Executor``."""

    weight_bytes: int
    activation_bytes: int
    kv_bytes_per_block: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What was decided, and why.

    Attributes:
        rows: (what, how much, how it was chosen and which flag changes it), ready to print.
        notices: sentences that a person should see even without the table.
    """

    num_blocks: int
    max_model_len: int
    rows: list[tuple[str, str, str]]
    notices: list[str]


def check_weights(model: str, weight_bytes: int, available: int | None) -> None:
    """Refuse weights that the system would have to end this process for.

    Args:
        weight_bytes: as packed for the kernels; of FP4 up to a third more than as stored.
        available: bytes free before they are loaded; None if unknown.

    Raises:
        ConfigError: they do not fit.
    """
    if available is not None and weight_bytes > available:
        raise ConfigError(
            f"{model}: the weights take {gib(weight_bytes)}, but {gib(available)} of memory are available; "
            f"choose a smaller model, or the same one in a smaller format"
        )


def wanted_model_len(config: EngineConfig, model_max_len: int) -> int:
    """The context length to aim for, before memory is looked at.

    Raises:
        ConfigError: ``max_model_len`` is beyond what the model was made for.
    """
    asked = config.max_model_len
    if asked is not None and asked > model_max_len:
        raise ConfigError(
            f"--max-model-len {asked} is beyond the {model_max_len} tokens that this model was made for; "
            f"ask for at most {model_max_len}"
        )
    return model_max_len if asked is None else asked


def plan_memory(
    config: EngineConfig, model_max_len: int, footprint: Footprint, available: int | None
) -> MemoryPlan:
    """Size the KV pool and settle the context length.

    Args:
        model_max_len: longest context that the model was made for, tokens.
        available: bytes free with the weights loaded; None if unknown.

    Raises:
        ConfigError: the memory cannot hold one sequence of the length asked for, or holds no block at all.
    """
    length = wanted_model_len(config, model_max_len)
    free = None if available is None else max(0, available - footprint.activation_bytes)
    num_blocks, chosen = _pool(config, length, footprint.kv_bytes_per_block, free)
    capacity = num_blocks * config.block_size
    if capacity < length and (config.max_model_len is not None or num_blocks == 0):
        raise ConfigError(_refusal(config, length, capacity, footprint.kv_bytes_per_block, free))
    notices = []
    if capacity < length:
        smaller = "" if config.kv_cache_dtype in ("int8", "fp8") else " or --kv-cache-dtype int8"
        notices.append(
            f"max_model_len lowered from {length} to {capacity}, the longest that fits the KV cache; "
            f"more memory (--kv-cache-memory){smaller} raises it"
        )
        length = capacity
    rows = _rows(config, footprint, num_blocks, length, chosen)
    return MemoryPlan(num_blocks=num_blocks, max_model_len=length, rows=rows, notices=notices)


def _pool(config: EngineConfig, length: int, block_bytes: int, free: int | None) -> tuple[int, str]:
    """Blocks to allocate and the reason in words."""
    if config.kv_cache_memory is not None:
        if free is not None and config.kv_cache_memory > free:
            raise ConfigError(
                f"--kv-cache-memory asks for {gib(config.kv_cache_memory)}, but {gib(free)} are available; "
                f"lower --kv-cache-memory or --max-num-batched-tokens"
            )
        return config.kv_cache_memory // block_bytes, "--kv-cache-memory"
    if free is None:
        raise ConfigError("this system does not say how much memory is free; set --kv-cache-memory")
    by_memory = int(free * config.kv_cache_fraction) // block_bytes
    by_need = config.max_num_seqs * blocks_for(length, config.block_size)
    if by_need <= by_memory:
        return by_need, f"all that --max-num-seqs {config.max_num_seqs} sequences of full length can use"
    share = f"{config.kv_cache_fraction:.0%} of the {gib(free)} available"
    return by_memory, f"{share} (--kv-cache-fraction, --kv-cache-memory)"


def _refusal(config: EngineConfig, length: int, capacity: int, block_bytes: int, free: int | None) -> str:
    needed = blocks_for(length, config.block_size) * block_bytes
    pool = capacity // config.block_size * block_bytes
    known = "" if free is None else f" of {size(free)} available"
    return (
        f"one sequence of {length} tokens needs {size(needed)} of KV cache ({config.kv_cache_dtype}), "
        f"but the pool is {size(pool)}{known}; the longest length that fits is {capacity} tokens. "
        f"Change --max-model-len, --kv-cache-memory (or --kv-cache-fraction) or --kv-cache-dtype"
    )


def _rows(
    config: EngineConfig, footprint: Footprint, num_blocks: int, length: int, chosen: str
) -> list[tuple[str, str, str]]:
    tokens = num_blocks * config.block_size
    per_token = footprint.kv_bytes_per_block / config.block_size
    sequences = num_blocks / blocks_for(length, config.block_size)
    step = f"--max-num-batched-tokens {config.max_num_batched_tokens}, --max-num-seqs {config.max_num_seqs}"
    return [
        ("weights", size(footprint.weight_bytes), "the model, packed for the kernels"),
        ("activations", size(footprint.activation_bytes), f"the largest step: {step}"),
        ("KV cache", size(num_blocks * footprint.kv_bytes_per_block), chosen),
        ("KV blocks", f"{num_blocks}", f"--block-size {config.block_size}"),
        ("KV tokens", f"{tokens}", f"{size(per_token)} each, --kv-cache-dtype {config.kv_cache_dtype}"),
        ("sequences at full length", f"{sequences:.1f}", f"--max-model-len {length}"),
    ]


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold ``tokens`` tokens."""
    return -(-tokens // block_size)


def gib(num_bytes: float) -> str:
    """Bytes in GiB, for messages."""
    return f"{num_bytes / GIB:.2f} GiB"


def size(num_bytes: float) -> str:
    """Bytes in the binary unit that reads best."""
    for unit in ("B", "KiB", "MiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.2f} GiB"
