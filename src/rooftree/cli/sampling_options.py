"""Flags for the fields of ``SamplingParams``, shared by the commands that answer prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

from rooftree.sampling.params import SamplingParams
from rooftree.server.params import MODEL_DEFAULTS

OPTIONS = (
    click.option(
        "--max-tokens", type=int, metavar="N", help="Most tokens. [default: all that the context leaves]"
    ),
    click.option("--min-tokens", type=int, metavar="N", help="Least tokens."),
    click.option(
        "--temperature",
        type=float,
        help="0: always the likeliest token. [default: what the model advises, else 0]",
    ),
    click.option("--top-p", type=float, help="Choose from the likeliest tokens of this share together."),
    click.option("--top-k", type=int, help="Choose from so many of the likeliest tokens."),
    click.option(
        "--min-p", type=float, help="Choose from tokens at least so likely, relative to the likeliest."
    ),
    click.option("--repetition-penalty", type=float, help="Above 1: against what the text has already."),
    click.option("--presence-penalty", type=float, help="Above 0: against what the answer has already."),
    click.option("--frequency-penalty", type=float, help="The same, by how often."),
    click.option("--seed", type=int, help="The same seed gives the same answer."),
    click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; may be repeated."),
    click.option("--ignore-eos", is_flag=True, help="Go on past the end of the answer."),
)


def sampling_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the flags to a command; the values arrive as keyword arguments named as the fields."""
    for option in reversed(OPTIONS):
        function = option(function)
    return function


def take_sampling_params(values: dict[str, Any], advised: Mapping[str, float | int]) -> SamplingParams:
    """The parameters from a command's keyword arguments, over what the model advises."""
    names = [name for name in SamplingParams.__struct_fields__ if name in values]
    given = {name: values.pop(name) for name in names}
    given["stop"] = tuple(given["stop"])
    chosen: dict[str, Any] = {"temperature": 0.0}
    chosen |= {name: advised[name] for name in MODEL_DEFAULTS if name in advised}
    chosen |= {name: value for name, value in given.items() if value is not None}
    return SamplingParams(**chosen)
