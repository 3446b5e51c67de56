"""The plan for a terminal."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rooftree.planner.deployment import PUBLISHED
from rooftree.planner.estimate import Estimate, OperatingPoint
from rooftree.planner.figure import Figure
from rooftree.planner.load import share_by_limit
from rooftree.planner.moves import published_dtype
from rooftree.planner.plan import Answers, Plan, StorageOption
from rooftree.planner.report_json import waterfall
from rooftree.planner.storage import changes
from rooftree.planner.workload import Workload
from rooftree.roofline.memory import GIB

MIB = 2**20
BAR = 46
LIMIT_STYLE = {"bandwidth": "cyan", "arithmetic": "magenta", "interconnect": "yellow", "overhead": "red"}
SHOWN_DEVICES = 12
_LEFT = ("change", "", "device", "layout", "dtypes", "weights", "KV")


def print_plan(plan: Plan, console: Console) -> None:
    """Everything that a person wants to see first."""
    chosen = plan.chosen
    good = chosen is not None and chosen.fits and chosen.meets
    style = ("yellow" if chosen and changes(chosen.deployment) else "green") if good else "red"
    console.print(Panel(Text(plan.verdict, style="bold"), border_style=style))
    if chosen is not None:
        console.print(_layout(plan, chosen))
        console.print(_memory(chosen))
        if chosen.fits and chosen.load is not None:
            console.print(_latency(chosen), "")
            console.print(_throughput(chosen))
            console.print(_steps(chosen))
            console.print(_moves(plan), "")
        console.print(_answers(plan), "")
        if len(plan.options) > 1:
            console.print(_options(plan), "")
    if plan.ranking:
        console.print(_ranking(plan))
    for note in plan.question.model.architecture.notes:
        console.print(f"note: {note}", style="dim", markup=False)


def duration(seconds: float) -> str:
    """``7.8 ms``, ``16.1 s``, ``3.2 h``."""
    if seconds < 10:
        return f"{short(seconds * 1e3)} ms" if seconds >= 1e-4 else f"{short(seconds * 1e6)} µs"
    return f"{short(seconds)} s" if seconds < 10_000 else f"{short(seconds / 3600)} h"


def duration_with_band(figure: Figure) -> str:
    """``7.8 ms (6.9–8.9)``: the band in the unit of the value. A dash for what does not occur."""
    if not figure.value:
        return "–"
    value, unit = duration(figure.value).rsplit(" ", 1)
    scale = {"µs": 1e6, "ms": 1e3, "s": 1.0, "h": 1 / 3600}[unit]
    return f"{value} {unit} ({short(figure.low * scale)}–{short(figure.high * scale)})"


def with_band(figure: Figure | None) -> str:
    """Value, unit and band; a dash where there is none."""
    if figure is None:
        return "–"
    return f"{short(figure.value)} {figure.unit} ({short(figure.low)}–{short(figure.high)})"


def short(value: float) -> str:
    """Three digits, thousands apart."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def layout_words(found: Estimate) -> str:
    """``2 × TP 4``, ``1 × TP 8 × PP 2``, ``1 × TP 1 × EP 8`` (replicas first)."""
    parallel = found.deployment.parallel
    words = f"{parallel.replicas} × TP {parallel.tensor}"
    if parallel.expert > 1:
        words += f" × EP {parallel.expert}"
    return f"{words} × PP {parallel.pipeline}" if parallel.pipeline > 1 else words


def scheduler_words(found: Estimate) -> str:
    """What batch sizes and sequences at once are counted for."""
    groups = found.deployment.parallel.groups
    return "replica" if groups == 1 else f"attention group (a replica has {groups})"


def window_words(found: Estimate) -> str:
    """Both ways to count KV under sliding windows; empty where no sequence outgrows one."""
    deployment, longest = found.deployment, found.workload.longest()
    kept, freed = (
        replace(deployment, options=replace(deployment.options, windowed=windowed)).sequence_bytes(longest)
        for windowed in (False, True)
    )
    if kept == freed:
        return ""
    counted = "freed, as --windowed-kv says" if deployment.options.windowed else "kept, as Rooftree does"
    return (
        f"the longest sequence takes {kept / MIB:,.1f} MiB per device with every token kept, "
        f"{freed / MIB:,.1f} MiB with those freed that have left a window (counted: {counted})"
    )


def load_words(plan: Plan) -> str:
    """The workload in a line."""
    workload = plan.question.workload
    load = f"{workload.rate or 0:,g} requests/s at random (Poisson)"
    if workload.concurrency is not None:
        each = "client, who always waits for an answer"
        load = f"1 {each}" if workload.concurrency == 1 else f"{workload.concurrency:,} clients, each always "
        load += "" if workload.concurrency == 1 else "waiting for one answer"
    cached = f", {workload.prefix_share:.0%} of prompts cached" if workload.prefix_share else ""
    return f"Tokens in: {workload.input.words()}; out: {workload.output.words()}; {load}{cached}"


def _layout(plan: Plan, found: Estimate) -> RenderableType:
    deployment, table = found.deployment, _table()
    dtypes = f"weights {published_dtype(deployment)}, KV {deployment.kv_dtype}"
    table.add_row("model", f"{plan.question.model.name}, {dtypes}")
    devices = f"{deployment.parallel.devices} × {deployment.device.name}"
    table.add_row("devices", f"{devices} ({layout_words(found)})")
    table.add_row("workload", load_words(plan))
    stack = deployment.constants.stack or "general constants, engine not measured"
    table.add_row("step model", f"{deployment.constants.origin}: {stack}")
    return table


def _memory(found: Estimate) -> RenderableType:
    budget = found.deployment.budget
    parts = [
        ("weights", budget.weights, "blue"),
        ("activations", budget.activations, "yellow"),
        ("runtime", budget.runtime, "red"),
        ("KV cache", max(0, budget.kv), "green"),
    ]
    if budget.fits:
        parts.append(("not used", budget.total - budget.usable, "bright_black"))
    bar, legend = Text(), Text()
    whole = max(budget.total, budget.weights + budget.activations + budget.runtime)
    for name, size, style in parts:
        bar.append("█" * round(BAR * max(0, size) / whole), style=style)
        legend.append(f"■ {name} {size / GIB:.1f}  ", style=style)
    table = _table()
    table.add_row("memory", Group(bar, legend.append("GiB per device", style="dim")))
    tokens = found.deployment.kv_tokens
    if found.fits and tokens:
        table.add_row(
            "KV cache",
            f"{short(found.deployment.kv_bytes_per_token)} B per token and device, {tokens:,.0f} tokens per "
            f"{scheduler_words(found)}: {found.sequences} sequences at once, "
            f"{found.sequences_longest} of the longest",
        )
    windows = window_words(found)
    if windows:
        table.add_row("windows", windows)
    return table


def _latency(found: Estimate) -> RenderableType:
    table = Table(box=None, pad_edge=False, header_style="dim")
    names = list(found.tpot or {})
    table.add_column("", min_width=14)
    for name in names:
        table.add_column(name.upper(), justify="right")
    for label, figures in (("TTFT", found.ttft or {}), ("TPOT", found.tpot or {})):
        table.add_row(label, *(duration_with_band(figures[name]) for name in names))
    return table


def _throughput(found: Estimate) -> RenderableType:
    table = _table()
    table.add_row("throughput", f"{with_band(found.output_rate)}, {with_band(found.request_rate)}")
    if found.load is not None:
        table.add_row(
            "batch",
            f"{found.load.mean_batch:.1f} on average, {found.load.peak_batch:.0f} at most per "
            f"{scheduler_words(found)}; best within the promise {found.best_batch}",
        )
    table.add_row("power", with_band(found.power_watts))
    if found.cost_per_million is not None:
        table.add_row("cost", with_band(found.cost_per_million))
    return table


def _steps(found: Estimate) -> RenderableType:
    tables = [_step(point) for point in (found.decode, found.prefill) if point is not None]
    if found.steady is None:
        return Group(*tables)
    time = found.steady.time
    shares = sorted(share_by_limit(time).items(), key=lambda item: -item[1])
    line = ", ".join(f"{name} {share:.0%}" for name, share in shares)
    line = f"mean step: {line} of the time; {time.bandwidth_fraction:.0%} of bandwidth and "
    line += f"{time.arithmetic_fraction:.0%} of arithmetic reached\n"
    return Group(*tables, Text(line, style="dim"))


def _step(point: OperatingPoint) -> RenderableType:
    table = Table(box=None, pad_edge=False, show_header=False, title_justify="left")
    table.title = f"{point.label}: {duration(point.time.seconds)}, bound by {point.time.binding}"
    for part in waterfall(point.time):
        width = max(1, round(BAR * part["seconds"] / point.time.seconds))
        bar = Text("█" * width, style=LIMIT_STYLE[part["limit"]])
        table.add_row(part["part"], duration(part["seconds"]), bar, part["limit"])
    return table


def _moves(plan: Plan) -> RenderableType:
    table = _headed("What would move it", ("change", "TPOT", "tok/s per device", "sequences per device", ""))
    for move in plan.moves:
        factors = (move.tpot, move.rate_per_device, move.sequences)
        table.add_row(move.change, *(f"×{factor:.2f}" for factor in factors), move.note)
    return table


def _answers(plan: Plan) -> RenderableType:
    answers, table = plan.answers, _table()
    if answers.fewest_devices is not None:
        table.add_row("fewest devices", f"{answers.fewest_devices:,}")
    if answers.largest_concurrency is not None:
        table.add_row("largest load", headroom_words(answers, plan.question.workload))
    if answers.peak is not None:
        table.add_row(f"at {plan.question.peak_factor:g}× the load", peak_words(answers))
    if plan.chosen is not None and plan.chosen.fits:
        table.add_row("a replica lost", loss_words(answers))
    return table


def headroom_words(answers: Answers, workload: Workload) -> str:
    """The largest load, and how many times the stated one it is."""
    clients = f"{answers.largest_concurrency or 0:,} clients at once"
    times = f"{short(answers.headroom or 0)} times this load"
    if workload.rate is None:
        return f"{clients}, {times}"
    return f"{short(workload.rate * (answers.headroom or 0))} requests/s, {times}; or {clients}"


def peak_words(answers: Answers) -> str:
    """What happens at the peak, and what it would take."""
    if answers.peak is None:
        return ""
    needed = f" A peak needs {answers.peak_devices:,} devices." if answers.peak_devices else ""
    return answers.peak.verdict + needed


def loss_words(answers: Answers) -> str:
    """What happens after the loss of one replica."""
    return answers.without_one.verdict if answers.without_one else "There is one replica: service stops."


def _options(plan: Plan) -> RenderableType:
    table = _headed("Dtypes that the question leaves open", ("weights", "KV", "fewest devices", "layout", ""))
    for option in plan.options:
        found = option.smallest
        table.add_row(
            weight_words(plan, option),
            option.kv_dtype,
            f"{found.deployment.parallel.devices:,}" if found else "–",
            layout_words(found) if found else "no number keeps the promise",
            option.price or ("as published" if found else ""),
        )
    return table


def weight_words(plan: Plan, option: StorageOption) -> str:
    """The weight dtype to show."""
    published = plan.question.model.architecture.scheme.name
    return published if option.weight_dtype == PUBLISHED else option.weight_dtype


def _ranking(plan: Plan) -> RenderableType:
    names = ("device", "devices", "layout", "dtypes", "TTFT P50", "TPOT P50", "tok/s", "watts", "per hour")
    table = _headed("Devices for this workload", names)
    for row in [row for row in plan.ranking if row.found][:SHOWN_DEVICES]:
        found = row.found
        if found is None or found.ttft is None or found.tpot is None or found.output_rate is None:
            continue
        table.add_row(
            row.device.name,
            str(found.deployment.parallel.devices),
            layout_words(found),
            dtype_words(found),
            duration(found.ttft["p50"].value),
            duration(found.tpot["p50"].value),
            short(found.output_rate.value),
            short(found.power_watts.value) if found.power_watts else "–",
            f"{row.hourly:.2f}" if row.hourly is not None else "–",
        )
    served = sum(1 for row in plan.ranking if row.found)
    more = f"and {served - SHOWN_DEVICES} more\n" if served > SHOWN_DEVICES else ""
    unable: dict[str, list[str]] = defaultdict(list)
    for row in plan.ranking:
        if not row.found:
            unable[row.binding].append(row.device.name)
    rest = "".join(f"no plan, bound by {limit}: {', '.join(names)}\n" for limit, names in unable.items())
    return Group(*([table] if served else []), Text(more + rest, style="dim"))


def dtype_words(found: Estimate) -> str:
    """``bf16/fp8``: weights and KV."""
    return f"{published_dtype(found.deployment)}/{found.deployment.kv_dtype}"


def _headed(title: str, names: tuple[str, ...]) -> Table:
    table = Table(box=None, pad_edge=False, title=title, title_justify="left", header_style="dim")
    for name in names:
        table.add_column(name, justify="left" if name in _LEFT else "right")
    return table


def _table() -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="dim", min_width=14)
    table.add_column()
    return table
