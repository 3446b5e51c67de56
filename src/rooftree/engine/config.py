"""Everything an engine is started with. Frozen; resolved values live in what start-up reports."""

from __future__ import annotations

from typing import Literal

import msgspec

from rooftree.checkpoint.quantization import Quantization
from rooftree.errors import ConfigError
from rooftree.scheduler.config import SchedulerConfig

KVCacheDType = Literal["fp16", "bf16", "fp32", "int8", "fp8"]
KVCacheChoice = Literal["auto", KVCacheDType]
Policy = Literal["fcfs", "priority"]


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Options of one engine; every field is a flag of ``rooftree serve`` with the same name.

    Attributes:
        model: ``smollm2``, a .gguf file, a Hugging Face directory or ``hf:org/name``.
        quantization: what float and FP8 weights are rounded to while loading; None: they stay as stored.
        max_model_len: longest prompt + answer in tokens; None: what the model was made for, or what fits.
        max_num_seqs: requests running at once.
        max_num_waiting: generations that may wait for their turn; more are refused with 503.
        max_num_batched_tokens: tokens of one step.
        block_size: tokens of a KV block, a multiple of 16.
        kv_cache_dtype: elements of the KV cache; auto: see ``rooftree.engine.kv_cache_dtype``.
        kv_cache_memory: bytes for KV blocks; None: ``kv_cache_fraction`` of the memory free after loading, at
            most what max_num_seqs sequences of full length could use.
        kv_watermark: share of all blocks kept free when a new request is admitted.
        threads: worker threads; None: physical cores this process may use.
        isa: kernels to use; None: the best that this processor has and this build contains.
        step_log: file for a record of every step (``rooftree.engine.step_log``); None: none is kept.
    """

    model: str = "smollm2"
    quantization: Quantization | None = None
    max_model_len: int | None = None
    max_num_seqs: int = 64
    max_num_waiting: int = 1024
    max_num_batched_tokens: int = 512
    block_size: int = 16
    kv_cache_dtype: KVCacheChoice = "auto"
    kv_cache_memory: int | None = None
    kv_cache_fraction: float = 0.5
    kv_watermark: float = 0.02
    enable_prefix_caching: bool = True
    scheduling_policy: Policy = "fcfs"
    threads: int | None = None
    isa: str | None = None
    executor: Literal["cpu", "reference"] = "cpu"
    step_log: str | None = None


MAX_THREADS = 1024
MAX_STEP_TOKENS = 1 << 20


def check_config(config: EngineConfig) -> None:
    """Refuse what is wrong in itself, before anything is loaded.

    Raises:
        ConfigError: an option out of its range. What contradicts the model or the memory is found later.
    """
    try:
        msgspec.convert(msgspec.to_builtins(config), EngineConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(f"an option is not possible: {error}") from None
    SchedulerConfig(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=1 if config.max_model_len is None else config.max_model_len,
    )
    length, step = config.max_model_len, config.max_num_batched_tokens
    rules = [
        (length is None or length >= 2, "max_model_len", "at least 2, a token to read and one to answer"),
        (step <= MAX_STEP_TOKENS, "max_num_batched_tokens", f"at most {MAX_STEP_TOKENS}"),
        (config.block_size >= 16 and config.block_size % 16 == 0, "block_size", "a multiple of 16"),
        (config.max_num_waiting >= 0, "max_num_waiting", "0 or more"),
        (0.0 < config.kv_cache_fraction <= 1.0, "kv_cache_fraction", "above 0 and at most 1"),
        (0.0 <= config.kv_watermark < 1.0, "kv_watermark", "at least 0 and below 1"),
        (config.kv_cache_memory is None or config.kv_cache_memory > 0, "kv_cache_memory", "positive"),
        (config.threads is None or 0 < config.threads <= MAX_THREADS, "threads", f"1 to {MAX_THREADS}"),
    ]
    for holds, option, rule in rules:
        if not holds:
            flag = option.replace("_", "-")
            raise ConfigError(f"--{flag} must be {rule}, not {getattr(config, option)}")
