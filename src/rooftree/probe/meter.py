"""What a probe measures with: the machine itself, or in tests one that is made up."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Protocol

from rooftree.checkpoint.base import DType
from rooftree.engine.config import EngineConfig
from rooftree.errors import ConfigError
from rooftree.probe.limits import Limits, measure_limits
from rooftree.probe.products import ProductChain
from rooftree.probe.random_model import random_checkpoint
from rooftree.probe.steps import StepRig, StepShape, TimedStep
from rooftree.roofline.costs import ModelCosts
from rooftree.roofline.machine import Setting
from rooftree.specs.model import ModelSpec


class Products(Protocol):
    """A chain of products; see ``ProductChain``."""

    weights: int
    weight_bytes: int

    def seconds(self, rows: int) -> float:
        """One pass."""


class Steps(Protocol):
    """An engine of a model; see ``StepRig``."""

    costs: ModelCosts

    def time(self, shape: StepShape, repeats: int) -> Sequence[TimedStep]:
        """Compute such steps."""

    def close(self) -> None:
        """Give memory and threads back."""


class Meter(Protocol):
    """All that a probe asks of a machine."""

    def limits(self, threads: int) -> Limits:
        """What so many threads reach at the most."""

    def products(self, dtype: DType, n: int, k: int, count: int, max_rows: int) -> Products:
        """``count`` matrices (n, k) of a format."""

    def steps(self, spec: ModelSpec, dtype: DType, kv_tokens: int, batch: int) -> Steps:
        """An engine of a random model with so much KV cache."""


class MachineMeter:
    """The machine that this runs on.

    Raises:
        ConfigError: more threads than processors; many would wait for each other without end.
    """

    def __init__(self, setting: Setting) -> None:
        processors = len(os.sched_getaffinity(0))
        if setting.threads > processors:
            raise ConfigError(
                f"{setting.threads} threads have {processors} processors here and would measure how they "
                f"wait for each other: give --threads {processors} or fewer"
            )
        self._setting = setting

    def limits(self, threads: int) -> Limits:
        return measure_limits(self._setting.isa, threads)

    def products(self, dtype: DType, n: int, k: int, count: int, max_rows: int) -> Products:
        return ProductChain(
            dtype,
            n,
            k,
            count=count,
            max_rows=max_rows,
            threads=self._setting.threads,
            isa=self._setting.isa,
        )

    def steps(self, spec: ModelSpec, dtype: DType, kv_tokens: int, batch: int) -> Steps:
        config = EngineConfig(
            model="random",
            max_num_seqs=batch,
            max_model_len=spec.max_position_embeddings,
            kv_cache_memory=kv_tokens * spec.kv_bytes_per_token(2),
            kv_watermark=0.0,
            enable_prefix_caching=False,
            threads=self._setting.threads,
            isa=self._setting.isa,
        )
        return StepRig(random_checkpoint(spec, dtype), config)
