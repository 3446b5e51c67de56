"""rooftree bench"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import click

from rooftree.cli.engine_options import engine_options, take_engine_config

HELP = """Measure the engine alone, in this process: no server, no text.

\b
  rooftree bench engine
  rooftree bench engine model.gguf --batch 1,8,32 --prompt-tokens 512 --output-tokens 128 --json

Prefill is prompt tokens per second of BATCH prompts; decode is generated tokens per second while all BATCH
requests generate; step is the median decode step; python is the share of it spent outside the kernels;
predicted is what the cost model gives such a step; memory is the share of the bandwidth that it uses; bound
is the limit that binds.
"""

HEADER = f"{'batch':>5} {'prefill tok/s':>14} {'decode tok/s':>13} {'step ms':>9} {'python':>7}"
HEADER += f" {'predicted':>9} {'memory':>6} {'bound':>11}"


class Batches(click.ParamType[tuple[int, ...]]):
    """A list of batch sizes: ``1,8,16``."""

    name = "list"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """The sizes."""
        try:
            sizes = tuple(int(part) for part in str(value).split(","))
        except ValueError:
            sizes = ()
        if not sizes or min(sizes) < 1:
            self.fail(f"{value!r} is not a list of batch sizes such as 1,8,16", param, ctx)
        return sizes


@click.group()
def command() -> None:
    """Measure speed."""


@command.command(help=HELP)
@click.argument("model", default="smollm2")
@click.option("--batch", type=Batches(), default="1,8,16,32", show_default=True, help="Requests at once.")
@click.option(
    "--prompt-tokens", type=click.IntRange(1), default=128, show_default=True, help="Tokens of each prompt."
)
@click.option(
    "--output-tokens", type=click.IntRange(2), default=64, show_default=True, help="Tokens of each answer."
)
@click.option(
    "--repeat", type=click.IntRange(1), default=3, show_default=True, help="Runs; medians are shown."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@engine_options(sharing=False)
def engine(
    model: str,
    batch: tuple[int, ...],
    prompt_tokens: int,
    output_tokens: int,
    repeat: int,
    as_json: bool,
    **values: Any,
) -> None:
    """See HELP."""
    from rooftree.bench.engine import Workload, measure
    from rooftree.cli.fetching import start_llm

    values |= {"enable_prefix_caching": False, "max_num_seqs": max(batch)}
    if values["max_model_len"] is None:
        values["max_model_len"] = prompt_tokens + output_tokens
    config = take_engine_config(model, values)
    results = []
    with start_llm(config) as llm:
        if not as_json:
            click.echo(HEADER)
        for size in batch:
            result = measure(llm.core, Workload(size, prompt_tokens, output_tokens), repeat)
            results.append(result)
            if not as_json:
                click.echo(
                    f"{size:>5} {result.prefill_tokens_per_s:>14.1f} {result.decode_tokens_per_s:>13.1f} "
                    f"{result.decode_step_s * 1e3:>9.2f} {result.python_share:>7.1%} "
                    f"{result.predicted_step_s * 1e3:>9.2f} {result.bandwidth_fraction:>6.0%} "
                    f"{result.bound:>11}"
                )
    if as_json:
        click.echo(
            json.dumps({"model": model, "results": [dataclasses.asdict(result) for result in results]})
        )
