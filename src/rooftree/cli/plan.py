"""rooftree plan"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rooftree.errors import ConfigError

if TYPE_CHECKING:
    from rooftree.planner.question import Question
    from rooftree.planner.workload import Promise, Workload

HELP = """Plan capacity for MODEL: what fits, how fast it answers, what binds, what it costs.

MODEL is a published name (meta-llama/Llama-3.1-70B), a config.json, a model folder or a .gguf file.

\b
  rooftree plan meta-llama/Llama-3.1-70B --device "H100 SXM" --count 8 --weight-dtype fp8 --concurrency 64
  rooftree plan Qwen/Qwen3-32B --device H200 --rate 5 --input 2000 --output lognormal:400:0.6 --tpot 0.04
  rooftree plan ./my-model --html plan.html        all devices ranked; one page to show around
  rooftree plan validate                           the model's errors on measured points
  rooftree plan calibrate --help                   fit it to your own server

Without --device all known devices are ranked. Without --count the fewest devices that keep the promise are
planned. No network is used. Every predicted figure has a band and says what it was calibrated on.
"""


class PlanGroup(click.Group):
    """``rooftree plan MODEL`` beside ``rooftree plan validate``: what names no subcommand is a model.

    Help is that of planning, with the subcommands behind it.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the name of the command that plans."""
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["model", *args]
        return super().parse_args(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Both forms."""
        formatter.write_usage(ctx.command_path, "[OPTIONS] MODEL")
        formatter.write_usage(ctx.command_path, "COMMAND [ARGS]...")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The options of planning, then the subcommands."""
        self.commands["model"].format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


class PlanContext(click.Context):
    """Of the command that plans: users do not write its name, so usage and errors do not show it."""

    @property
    def command_path(self) -> str:
        """``rooftree plan``."""
        return super().command_path if self.parent is None else self.parent.command_path


class PlanCommand(click.Command):
    """``rooftree plan MODEL``."""

    context_class = PlanContext


@click.group(cls=PlanGroup, help=HELP)
def command() -> None:
    """See HELP."""


@command.command(cls=PlanCommand, hidden=True, help=HELP)
@click.argument("model")
@click.option("--device", help="Name of an accelerator; see 'rooftree devices'.")
@click.option("--count", type=int, help="Devices at hand; default: as few as keep the promise.")
@click.option("--devices-file", type=click.Path(path_type=Path), help="Your own devices (TOML or JSON).")
@click.option(
    "--weight-dtype",
    help="published, fp8, nvfp4, awq, ...; default: as published, or less where only that serves.",
)
@click.option("--kv-dtype", help="bf16, fp8, int8, ...; default: bf16, or fp8 where only that serves.")
@click.option(
    "--input",
    "input_",
    default="1024",
    show_default=True,
    help="Prompt tokens: N, LOW-HIGH or lognormal:MEAN:SIGMA[:MAX].",
)
@click.option("--output", default="256", show_default=True, help="Answer tokens, in the same forms.")
@click.option("--concurrency", type=int, help="Clients, each waiting for one answer (default 1).")
@click.option("--rate", type=float, help="Requests per second, at random times.")
@click.option("--prefix-share", type=float, default=0.0, show_default=True, help="Share of prompts cached.")
@click.option("--ttft", type=float, help="Promised seconds to the first token.")
@click.option("--tpot", type=float, help="Promised seconds per further token.")
@click.option("--percentile", type=float, default=0.95, show_default=True, help="Of both promises.")
@click.option(
    "--price",
    "prices",
    multiple=True,
    help="Per device and hour: 2.5, or 'L40S=0.8' (repeatable) to rank by.",
)
@click.option("--peak-factor", type=float, default=1.0, show_default=True, help="A peak's load over this.")
@click.option("--tp", "tensor", type=int, help="Tensor parallel size; default: the best.")
@click.option("--pp", "pipeline", type=int, help="Pipeline stages; default: as few as fit.")
@click.option(
    "--ep", "expert", type=int, help="Devices over which experts are spread (1: cut); default: the best."
)
@click.option("--replicas", type=int, help="Copies; default: all that fit.")
@click.option("--engine", help="Use constants measured on this engine (vllm, trtllm, rooftree, ...).")
@click.option(
    "--max-num-batched-tokens",
    type=click.IntRange(128, 1_048_576),
    help="Tokens of one step; default: 8192, on this machine what our engine takes.",
)
@click.option(
    "--max-num-seqs",
    type=click.IntRange(1, 65_536),
    help="Requests running at once; default: 256, on this machine what our engine takes.",
)
@click.option(
    "--memory-fraction",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.9,
    show_default=True,
    help="Of a device's memory that the server uses.",
)
@click.option("--windowed-kv", is_flag=True, help="The engine frees KV that has left a sliding window.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the simulated load.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object (schema in docs/planner.md).")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Write one page.")
def model(as_json: bool, html: Path | None, **values: Any) -> None:
    """See HELP."""
    from rooftree.planner.plan import make_plan

    plan = make_plan(take_question(values))
    if html is not None:
        from rooftree.planner.report_html import plan_html

        try:
            html.write_text(plan_html(plan), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"--html {html}: {error.strerror or error}") from error
        click.echo(f"written: {html}", err=True)
    if as_json:
        from rooftree.planner.report_json import plan_json

        click.echo(json.dumps(plan_json(plan), indent=2))
    elif html is None:
        from rich.console import Console

        from rooftree.planner.report_text import print_plan

        print_plan(plan, Console())


def take_question(values: dict[str, Any]) -> Question:
    """The question that the options ask.

    Raises:
        RooftreeError: an option that is wrong, or a model or device that is not known.
    """
    from rooftree.planner.constants import user_constants_file
    from rooftree.planner.deployment import PUBLISHED
    from rooftree.planner.devices import measured_device, priced
    from rooftree.planner.models import resolve_model
    from rooftree.planner.own_engine import own_options
    from rooftree.planner.question import Question
    from rooftree.roofline.machine import known_machine_file
    from rooftree.roofline.memory import USUAL_MEMORY, MemoryOptions
    from rooftree.specs.catalogue import known_devices
    from rooftree.specs.weight_format import cache_bytes
    from rooftree.specs.weight_scheme import named_scheme

    weight_dtype = values["weight_dtype"]
    if weight_dtype == "published":
        weight_dtype = PUBLISHED
    elif weight_dtype is not None:
        named_scheme(weight_dtype)
    if values["kv_dtype"] is not None:
        cache_bytes(1, values["kv_dtype"])
    own, probed = values["devices_file"], known_machine_file()
    price, prices = _prices(values["prices"], own)
    device = measured_device(values["device"], own, probed) if values["device"] is not None else None
    step, seats = values["max_num_batched_tokens"], values["max_num_seqs"]
    options = MemoryOptions(
        usable_fraction=values["memory_fraction"],
        max_batched_tokens=step or USUAL_MEMORY.max_batched_tokens,
        max_sequences=seats or USUAL_MEMORY.max_sequences,
        windowed=values["windowed_kv"],
    )
    return Question(
        model=resolve_model(values["model"]),
        workload=_workload(values),
        device=priced(device, prices) if device is not None else None,
        count=values["count"],
        promise=_promise(values),
        weight_dtype=weight_dtype,
        kv_dtype=values["kv_dtype"],
        tensor=values["tensor"],
        pipeline=values["pipeline"],
        expert=values["expert"],
        replicas=values["replicas"],
        engine=values["engine"],
        price=price,
        peak_factor=values["peak_factor"],
        options=options,
        own_options=None if probed is None else own_options(values["model"], options, step, seats),
        devices=tuple(priced(known, prices) for known in known_devices(own, probed)),
        constants_file=user_constants_file(),
        machine_file=probed,
    )


def _prices(texts: tuple[str, ...], own: Path | None) -> tuple[float | None, dict[str, float]]:
    """The price of whatever device is planned, and those of devices by name."""
    from rooftree.planner.devices import measured_device

    single, by_name = None, {}
    for text in texts:
        name, named, amount = text.rpartition("=")
        try:
            price = float(amount)
        except ValueError:
            raise ConfigError(f"--price {text!r}: give a number, or DEVICE=NUMBER") from None
        if not 0 <= price < float("inf"):
            raise ConfigError(f"--price {text!r}: it must be a number and not below 0")
        if named:
            by_name[measured_device(name, own).name] = price
        else:
            single = price
    return single, by_name


def _workload(values: dict[str, Any]) -> Workload:
    from rooftree.planner.lengths import parse_lengths
    from rooftree.planner.workload import Workload

    if values["concurrency"] is not None and values["rate"] is not None:
        raise ConfigError("--concurrency and --rate are two kinds of load: give one of them")
    concurrency = values["concurrency"]
    if concurrency is None and values["rate"] is None:
        concurrency = 1
    return Workload(
        input=parse_lengths(values["input_"], "--input"),
        output=parse_lengths(values["output"], "--output"),
        concurrency=concurrency,
        rate=values["rate"],
        prefix_share=values["prefix_share"],
        seed=values["seed"],
    )


def _promise(values: dict[str, Any]) -> Promise:
    from rooftree.planner.workload import Promise

    return Promise(values["ttft"], values["tpot"], values["percentile"])


@command.command()
@click.option("--points", type=click.Path(path_type=Path, dir_okay=False), help="A CSV of the same columns.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, every prediction in it.")
def validate(points: Path | None, as_json: bool) -> None:
    """Hold the step model against measured points, each predicted by constants that never saw it.

    Calibrated: constants of the stack (device, engine and version, weight dtype) from at most 20 of its other
    points. Unseen: constants from all other stacks. TTFT is judged only where the load protocol is published.
    """
    from rooftree.planner.calibration.points import read_points
    from rooftree.planner.calibration.report import print_validation, validation_json
    from rooftree.planner.calibration.validate import validate as judge
    from rooftree.planner.devices import measured_device

    read, unusable = read_points(points)
    more = [] if points is None else _shipped_besides({point.id for point in read})
    result = judge(read, unusable, measured_device, more)
    if as_json:
        click.echo(json.dumps(validation_json(result), indent=1))
        return
    from rich.console import Console

    print_validation(result, Console())


def _shipped_besides(ids: set[str]) -> list[Any]:
    """Points that come with Rooftree and are not among those to judge."""
    from rooftree.planner.calibration.points import read_points

    return [point for point in read_points()[0] if point.id not in ids]


@command.command()
@click.option(
    "--steps",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Step log of a Rooftree server, as 'rooftree serve --step-log FILE' writes it.",
)
@click.option(
    "--points",
    type=click.Path(path_type=Path, dir_okay=False),
    help="About 20 points measured on any "
    "OpenAI-compatible server (CSV, the columns of 'rooftree plan validate').",
)
@click.option("--model", "model_name", help="The model that the step log is of.")
@click.option("--device", help="The device that the step log is of.")
@click.option("--devices-file", type=click.Path(path_type=Path), help="Your own devices (TOML or JSON).")
@click.option("--engine", default="rooftree", show_default=True, help="Name to store it under.")
@click.option("--weight-dtype", help="Of the step log's model; default: as published.")
@click.option("--kv-dtype", default="bf16", show_default=True, help="Of the step log's server.")
@click.option("--tp", "tensor", type=click.IntRange(1), default=1, show_default=True)
@click.option(
    "--write",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to store constants in; default: your configuration folder, where 'rooftree plan' finds them.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def calibrate(**values: Any) -> None:
    """Fit the step model to your own server and store the constants with their error."""
    from rooftree.planner.calibration.own import calibrate_points, calibrate_steps, store
    from rooftree.planner.constants import user_constants_file
    from rooftree.roofline.machine import known_machine_file

    if (values["steps"] is None) == (values["points"] is None):
        raise ConfigError("give either --steps (a step log) or --points (a CSV of measured points)")
    if values["points"] is not None:
        entries = calibrate_points(values["points"], values["devices_file"], known_machine_file())
    else:
        for name in ("model_name", "device"):
            if values[name] is None:
                option = "--model" if name == "model_name" else "--device"
                raise ConfigError(f"a step log does not say what it was measured on: give {option}")
        options = {name: values[name] for name in _STEP_OPTIONS}
        entries = [calibrate_steps(**options, machine_file=known_machine_file())]
    file = values["write"] or user_constants_file()
    store(entries, file)
    if values["as_json"]:
        click.echo(json.dumps({"file": str(file), "stacks": entries}, indent=1))
        return
    for entry in entries:
        errors = ", ".join(
            f"{kind} {error['median']:.1%} (median of {error['points']})"
            for kind, error in entry["errors"].items()
        )
        click.echo(f"{entry['stack']}: {entry['points']} points; error on held-out points: {errors}")
    click.echo(f"stored in {file}")


_STEP_OPTIONS = (
    "steps",
    "model_name",
    "device",
    "devices_file",
    "engine",
    "weight_dtype",
    "kv_dtype",
    "tensor",
)
