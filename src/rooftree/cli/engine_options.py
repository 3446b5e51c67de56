"""Flags for the fields of ``EngineConfig``, in vLLM's spellings, for all commands that start an engine."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, get_args

import click

from rooftree.checkpoint.quantization import Quantization
from rooftree.engine.config import EngineConfig, KVCacheChoice, Policy

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
DEFAULTS = EngineConfig()


class ByteSize(click.ParamType[int]):
    """A number of bytes: ``2GiB``, ``512MB``, ``1.5GiB`` or a plain number."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Z]*)", str(value).strip().upper())
        if match is None or match[2] not in UNITS:
            self.fail(f"{value!r} is not a size such as 2GiB, 512MB or 1000000", param, ctx)
        return int(float(match[1]) * UNITS[match[2]])


QUANTIZATION = click.option(
    "--quantization",
    type=click.Choice(get_args(Quantization)),
    help="Round float and FP8 weights to this format while loading. [default: as stored]",
)
OPTIONS = (
    QUANTIZATION,
    click.option(
        "--max-model-len",
        type=int,
        metavar="TOKENS",
        help="Longest prompt and answer together. [default: the model's own, or what fits]",
    ),
    click.option(
        "--max-num-batched-tokens",
        type=int,
        default=DEFAULTS.max_num_batched_tokens,
        show_default=True,
        help="Tokens of one step. More: faster prefill; less: steadier answers.",
    ),
    click.option(
        "--block-size",
        type=int,
        default=DEFAULTS.block_size,
        show_default=True,
        help="Tokens of a KV block, a multiple of 16.",
    ),
    click.option(
        "--kv-cache-dtype",
        type=click.Choice(get_args(KVCacheChoice)),
        default=DEFAULTS.kv_cache_dtype,
        show_default=True,
        help="Elements of the KV cache. auto: bf16 for BF16 weights where the processor multiplies bf16, "
        "else fp16. fp32: twice the size, to compare with. int8, fp8: half the size and 4 bytes for each "
        "position and head, less exact.",
    ),
    click.option(
        "--kv-cache-memory",
        type=ByteSize(),
        metavar="SIZE",
        help="Memory for the KV cache, such as 2GiB. [default: see --kv-cache-fraction]",
    ),
    click.option(
        "--kv-cache-fraction",
        type=float,
        default=DEFAULTS.kv_cache_fraction,
        show_default=True,
        help="Share of the free memory that the KV cache may take.",
    ),
    click.option("--threads", type=int, help="Worker threads. [default: the physical cores it may use]"),
    click.option(
        "--isa",
        metavar="NAME",
        envvar="ROOFTREE_ISA",
        help="Kernels to use; also as $ROOFTREE_ISA. [default: the best for this processor]",
    ),
    click.option(
        "--executor",
        type=click.Choice(["cpu", "reference"]),
        default=DEFAULTS.executor,
        show_default=True,
        help="'reference' is slow numpy, to compare with.",
    ),
)
SHARING_OPTIONS = (
    click.option(
        "--max-num-seqs",
        type=int,
        default=DEFAULTS.max_num_seqs,
        show_default=True,
        help="Requests running at once.",
    ),
    click.option(
        "--enable-prefix-caching/--no-enable-prefix-caching",
        default=DEFAULTS.enable_prefix_caching,
        show_default=True,
        help="Keep what equal beginnings of prompts have in common.",
    ),
)
SERVER_OPTIONS = (
    click.option(
        "--max-num-waiting",
        type=int,
        default=DEFAULTS.max_num_waiting,
        show_default=True,
        help="Requests that may wait; more are refused with 503.",
    ),
    click.option(
        "--kv-watermark",
        type=float,
        default=DEFAULTS.kv_watermark,
        show_default=True,
        help="Share of KV blocks kept free when a request is admitted.",
    ),
    click.option(
        "--scheduling-policy",
        type=click.Choice(get_args(Policy)),
        default=DEFAULTS.scheduling_policy,
        show_default=True,
        help="Who goes first: by arrival, or by the request's 'priority'.",
    ),
    click.option(
        "--step-log",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        help="Write a line of JSON for every step of the engine, for 'rooftree plan calibrate --steps FILE'.",
    ),
)


def engine_options(
    *, sharing: bool = True, server: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the flags to a command; the values arrive as keyword arguments named as the fields.

    Args:
        sharing: with those about requests side by side, which a benchmark decides itself.
        server: with those about requests that wait, and about long runs.
    """
    options = (*OPTIONS, *(SHARING_OPTIONS if sharing else ()), *(SERVER_OPTIONS if server else ()))

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return add


def take_engine_config(model: str, values: dict[str, Any]) -> EngineConfig:
    """The config from a command's keyword arguments; those it uses are taken out of ``values``."""
    known = {name: values.pop(name) for name in EngineConfig.__struct_fields__ if name in values}
    return EngineConfig(model=model, **known)
