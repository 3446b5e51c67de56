"""The plan as one page that needs nothing else: no script, no font, no request."""

from __future__ import annotations

from html import escape

from rooftree.planner.estimate import Estimate, OperatingPoint, batch_curve, operating_points
from rooftree.planner.figure import Figure
from rooftree.planner.load import SteadyState
from rooftree.planner.moves import published_dtype
from rooftree.planner.page_style import STYLE
from rooftree.planner.plan import Plan
from rooftree.planner.report_json import waterfall
from rooftree.planner.report_text import (
    dtype_words,
    duration,
    duration_with_band,
    headroom_words,
    layout_words,
    load_words,
    loss_words,
    peak_words,
    scheduler_words,
    short,
    weight_words,
    window_words,
    with_band,
)
from rooftree.planner.storage import changes
from rooftree.planner.svg import Plot, decades, plot
from rooftree.roofline.memory import GIB
from rooftree.roofline.time import arithmetic_dtype


def plan_html(plan: Plan) -> str:
    """The whole page."""
    chosen = plan.chosen
    sections = [_header(plan)]
    if chosen is not None and chosen.fits and chosen.load is not None:
        sections += [_cards(plan, chosen), _facts(plan, chosen)]
        sections.append(_pair(_roofline(chosen), _batches(chosen)))
        sections.append(_pair(f"<div>{_memory(chosen)}{_answers(plan)}</div>", _waterfalls(chosen)))
        sections.append(_moves(plan))
        sections.append(_options(plan))
    elif chosen is not None:
        sections += [_facts(plan, chosen), _memory(chosen), _answers(plan), _options(plan)]
    if plan.ranking:
        sections.append(_ranking(plan))
    sections.append(_method(plan))
    title = escape(f"Capacity plan: {plan.question.model.name}")
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body><main>{''.join(sections)}</main></body></html>\n"
    )


def _header(plan: Plan) -> str:
    chosen = plan.chosen
    good = chosen is not None and chosen.fits and chosen.meets
    style = ("changed" if chosen and changes(chosen.deployment) else "good") if good else "bad"
    return (
        f"<header><p class='eyebrow'>Capacity plan</p><h1>{escape(plan.question.model.name)}</h1>"
        f"<p class='verdict {style}'>{escape(plan.verdict)}</p>"
        f"<p class='sub'>{escape(load_words(plan))}</p></header>"
    )


def _cards(plan: Plan, found: Estimate) -> str:
    parallel = found.deployment.parallel
    fraction = f"p{plan.question.promise.percentile * 100:g}"
    cards = [
        ("Devices", f"{parallel.devices} × {found.deployment.device.name}", layout_words(found)),
        _time_card("Time to first token", found.ttft or {}, fraction, plan.question.promise.ttft),
        _time_card("Time per output token", found.tpot or {}, fraction, plan.question.promise.tpot),
        ("Throughput", *_split(found.output_rate)),
        ("Power", *_split(found.power_watts)),
    ]
    if found.cost_per_million is not None:
        cost = found.cost_per_million
        cards.append(("Cost per million tokens", short(cost.value), f"{short(cost.low)}–{short(cost.high)}"))
    items = "".join(
        f"<div class='card'><p class='label'>{escape(label)}</p><p class='value'>{escape(value)}</p>"
        f"<p class='band-text'>{escape(band)}</p></div>"
        for label, value, band in cards
    )
    return f"<section class='cards'>{items}</section>"


def _time_card(
    label: str, figures: dict[str, Figure], fraction: str, promised: float | None
) -> tuple[str, str, str]:
    figure = figures[fraction]
    kept = f", promised {short(promised * 1e3)} ms" if promised is not None else ""
    band = f"{short(figure.low * 1e3)}–{short(figure.high * 1e3)} ms{kept}"
    return f"{label}, {fraction.upper()}", f"{short(figure.value * 1e3)} ms", band


def _split(figure: Figure | None) -> tuple[str, str]:
    if figure is None:
        return "not known", ""
    return f"{short(figure.value)} {figure.unit}", f"{short(figure.low)}–{short(figure.high)}"


def _facts(plan: Plan, found: Estimate) -> str:
    deployment = found.deployment
    stack = deployment.constants.stack or "general constants, engine not measured"
    rows = [
        ("Weights", published_dtype(deployment)),
        ("KV cache", deployment.kv_dtype),
        *(
            (f"Changed: {change.what}", f"{change.words()}: {change.quality}")
            for change in changes(deployment)
        ),
        ("Step model", f"{deployment.constants.origin}: {stack}"),
    ]
    if found.load is not None:
        batch = f"{found.load.mean_batch:.1f} on average, {found.load.peak_batch:.0f} at most"
        per = f", per {scheduler_words(found)}"
        rows.append(("Batch", f"{batch}; best within the promise {found.best_batch}{per}"))
        rows.append(("At once", f"{found.sequences} sequences{per}"))
        for label, figures in (("TTFT", found.ttft or {}), ("TPOT", found.tpot or {})):
            cells = ", ".join(
                f"{name.upper()} {duration_with_band(value)}" for name, value in figures.items()
            )
            rows.append((label, cells))
        rows.append(("Requests", with_band(found.request_rate)))
    cells = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows)
    return f"<section class='panel'><h2>The plan</h2><dl>{cells}</dl></section>"


def _roofline(found: Estimate) -> str:
    deployment = found.deployment
    device = deployment.device
    points = operating_points(deployment, found.workload, found.sequences)
    largest = max(points[-1].work.parts, key=lambda part: part.flop)
    dtype = arithmetic_dtype(device, largest.arithmetic)
    peak = device.flops(dtype)
    ridge = peak / device.bandwidth
    reached = [point.work.flop / point.time.seconds for point in points]
    intensities = [point.work.intensity for point in points]
    x = decades([*intensities, ridge * 4])
    y = decades([*reached, peak])
    figure = plot(560, 360, x, y)
    figure.grid("FLOP per byte of device memory", "FLOP/s per device")
    figure.line([(x[0], x[0] * device.bandwidth), (ridge, peak), (x[1], peak)], "roof")
    efficiency = deployment.efficiency
    bandwidth = device.bandwidth * efficiency.weight_bandwidth
    real_peak = peak * efficiency.arithmetic
    knee = real_peak / bandwidth
    figure.line([(x[0], x[0] * bandwidth), (knee, real_peak), (x[1], real_peak)], "roof reachable")
    _roof_labels(figure, device.bandwidth, peak, dtype, ridge)
    for point, rate in zip(points, reached, strict=True):
        _operating_point(figure, point, rate)
    note = (
        "Solid: published rates. Dashed: what the step model says an engine reaches. "
        "Dots: whole steps, with overheads and links, so they lie below."
    )
    return _panel("Roofline", figure.render("Roofline plot"), note)


def _roof_labels(figure: Plot, bandwidth: float, peak: float, dtype: str, ridge: float) -> None:
    figure.text(
        figure.x.start + figure.x.pixels - 4,
        figure.y.at(peak) - 7,
        f"{peak / 1e12:,.0f} TFLOP/s {dtype}",
        "note end",
    )
    figure.line([(ridge, figure.y.low), (ridge, peak)], "ridge")
    figure.text(figure.x.at(ridge) - 6, figure.y.start - 8, f"ridge {ridge:,.0f} FLOP/B", "note end")
    at = figure.x.low * 3
    label = f"{bandwidth / 1e12:.2f} TB/s"
    figure.text(figure.x.at(at) - 8, figure.y.at(at * bandwidth) - 3, label, "note end")


def _operating_point(figure: Plot, point: OperatingPoint, rate: float) -> None:
    is_decode = point.label.startswith("decode")
    tip = (
        f"{point.label}: {point.time.seconds * 1e3:.3g} ms, {point.work.intensity:.1f} FLOP/B, "
        f"{rate / 1e12:.3g} TFLOP/s, bound by {point.time.binding}"
    )
    figure.point(point.work.intensity, rate, "decode" if is_decode else "prefill", tip)
    label = f"batch {point.batch}" if is_decode else "prefill"
    x, y = figure.x.at(point.work.intensity), figure.y.at(rate)
    near_edge = x > figure.x.start + figure.x.pixels - 70
    figure.text(x + (-9 if near_edge else 9), y + 15, label, "note end" if near_edge else "note")


def _batches(found: Estimate) -> str:
    states = batch_curve(found.deployment, found.workload, found.sequences)
    latency = [(state.batch, state.tpot * 1e3) for state in states]
    half = found.deployment.constants
    low = [(state.batch, half.band("tpot", state.tpot)[0] * 1e3) for state in states]
    high = [(state.batch, half.band("tpot", state.tpot)[1] * 1e3) for state in states]
    promised = found.promise.tpot
    values = [value for _, value in [*low, *high]] + ([promised * 1e3] if promised else [])
    figure = plot(560, 360, (0.7, max(4.0, found.sequences * 1.4)), decades(values))
    figure.grid("sequences in a step, per replica", "time per output token, ms")
    figure.area(low, high)
    figure.line(latency, "latency")
    if promised:
        figure.line([(figure.x.low, promised * 1e3), (figure.x.high, promised * 1e3)], "promise")
        figure.text(figure.x.start + 6, figure.y.at(promised * 1e3) - 6, "promised TPOT", "note")
    for state in states:
        _batch_point(figure, state, found)
    note = (
        f"Each dot: a full replica in steady state; beside it tokens per second. Band: {half.origin}. "
        f"Best batch within the promise: {found.best_batch}."
    )
    return _panel("Batch against latency", figure.render("Batch against latency"), note)


def _batch_point(figure: Plot, state: SteadyState, found: Estimate) -> None:
    promised = found.promise.tpot
    kept = promised is None or state.tpot <= promised
    tip = (
        f"batch {state.batch}: TPOT {state.tpot * 1e3:.3g} ms, {state.output_rate:,.0f} tok/s per replica, "
        f"bound by {state.time.binding}"
    )
    figure.point(state.batch, state.tpot * 1e3, "decode" if kept else "broken", tip)
    x, y = figure.x.at(state.batch), figure.y.at(state.tpot * 1e3)
    figure.text(x, y - 11, short(state.output_rate), "note middle")


def _memory(found: Estimate) -> str:
    budget = found.deployment.budget
    total = max(budget.total, budget.weights + budget.activations + budget.runtime)
    parts = [
        ("weights", "weights", budget.weights),
        ("activations", "activations", budget.activations),
        ("runtime", "runtime", budget.runtime),
        ("KV cache", "kv", max(0, budget.kv)),
    ]
    if budget.fits:
        parts.append(("left free", "free", budget.total - budget.usable))
    bars = "".join(
        f"<span class='{style}' style='width:{100 * size / total:.2f}%' title='{name} {size / GIB:.1f} GiB'>"
        "</span>"
        for name, style, size in parts
    )
    legend = "".join(
        f"<li><i class='{style}'></i>{escape(name)} <b>{size / GIB:.1f} GiB</b></li>"
        for name, style, size in parts
    )
    tokens = found.deployment.kv_tokens or 0.0
    note = f"Per device of {budget.total / GIB:.1f} GiB, {budget.usable / GIB:.1f} GiB of them usable."
    if found.fits and tokens > 0:
        note += (
            f" {found.deployment.kv_bytes_per_token:,.0f} B of KV per token and device: {tokens:,.0f} tokens "
            f"per {scheduler_words(found)}, {found.sequences} sequences at once, "
            f"{found.sequences_longest} of the longest."
        )
    windows = window_words(found)
    if windows:
        note += f" Sliding windows: {windows}."
    body = f"<div class='bar'>{bars}</div><ul class='legend'>{legend}</ul>"
    return _panel("Memory", body, note)


def _waterfalls(found: Estimate) -> str:
    body = "".join(_waterfall(point) for point in (found.decode, found.prefill) if point is not None)
    keys = "".join(
        f"<li><i class='{name}'></i>{name}</li>"
        for name in ("bandwidth", "arithmetic", "interconnect", "overhead")
    )
    return _panel("Where a step's time goes", body + f"<ul class='legend'>{keys}</ul>", "")


def _waterfall(point: OperatingPoint) -> str:
    rows, before = [], 0.0
    for part in waterfall(point.time):
        width = 100 * part["seconds"] / point.time.seconds
        rows.append(
            f"<tr><th>{escape(part['part'])}</th><td class='track'><span class='{part['limit']}' "
            f"style='margin-left:{before:.2f}%;width:{width:.2f}%'></span></td>"
            f"<td class='num'>{duration(part['seconds'])}</td></tr>"
        )
        before += width
    title = f"{point.label}: {duration(point.time.seconds)}, bound by {point.time.binding}"
    return f"<h3>{escape(title)}</h3><table class='waterfall'>{''.join(rows)}</table>"


def _moves(plan: Plan) -> str:
    rows = "".join(
        f"<tr><td>{escape(move.change)}{_small(move.note)}</td>{_factor(move.tpot, less_is_better=True)}"
        f"{_factor(move.rate_per_device)}{_factor(move.sequences)}</tr>"
        for move in plan.moves
    )
    head = "<tr><th>change</th><th>TPOT</th><th>tok/s per device</th><th>sequences per device</th></tr>"
    return _panel("What would move it", f"<table>{head}{rows}</table>", "Factors, one change at a time.")


def _small(note: str) -> str:
    return f"<br><small>{escape(note)}</small>" if note else ""


def _factor(value: float, *, less_is_better: bool = False) -> str:
    better = value < 0.98 if less_is_better else value > 1.02
    worse = value > 1.02 if less_is_better else value < 0.98
    style = "better" if better else "worse" if worse else ""
    return f"<td class='num {style}'>×{value:.2f}</td>"


def _answers(plan: Plan) -> str:
    answers, rows = plan.answers, []
    if answers.fewest_devices is not None:
        rows.append(("Fewest devices that keep the promise", str(answers.fewest_devices)))
    if answers.largest_concurrency is not None:
        rows.append(("Largest load", headroom_words(answers, plan.question.workload)))
    if answers.peak is not None:
        rows.append((f"At {plan.question.peak_factor:g} times the load", peak_words(answers)))
    if plan.chosen is not None and plan.chosen.fits:
        rows.append(("After the loss of one replica", loss_words(answers)))
    if answers.best_device is not None:
        rows.append(("First in the ranking", answers.best_device))
    cells = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in rows)
    return _panel("Turned around", f"<dl>{cells}</dl>", "")


def _options(plan: Plan) -> str:
    """What dtypes would do that the question leaves open; nothing where it leaves none."""
    if len(plan.options) < 2:
        return ""
    rows = ""
    for option in plan.options:
        found = option.smallest
        cells = (
            f"{found.deployment.parallel.devices:,}" if found else "–",
            layout_words(found) if found else "no number keeps the promise",
        )
        body = "".join(f"<td class='num'>{escape(cell)}</td>" for cell in cells)
        price = option.price or ("as published" if found else "")
        rows += f"<tr><td>{escape(weight_words(plan, option))} / {escape(option.kv_dtype)}</td>{body}"
        rows += f"<td>{escape(price)}</td></tr>"
    head = "<tr><th>weights / KV cache</th><th>fewest devices</th><th>layout</th><th>quality</th></tr>"
    note = "A smaller dtype is planned only where the published one does not serve, and the verdict says so."
    return _panel(
        "Dtypes that the question leaves open", f"<table class='text-last'>{head}{rows}</table>", note
    )


def _ranking(plan: Plan) -> str:
    chosen = plan.chosen.deployment.device.name if plan.chosen else ""
    rows = []
    for row in plan.ranking:
        found = row.found
        if found is None or found.ttft is None or found.tpot is None or found.output_rate is None:
            rows.append(
                f"<tr class='out'><td>{escape(row.device.name)}</td>"
                f"<td colspan='8'>{escape(row.reason)}</td></tr>"
            )
            continue
        price = f"{row.hourly:.2f}" if row.hourly is not None else "–"
        cells = (
            str(found.deployment.parallel.devices),
            layout_words(found),
            dtype_words(found),
            f"{duration(found.ttft['p50'].value)}",
            duration_with_band(found.tpot["p50"]),
            short(found.output_rate.value),
            short(found.power_watts.value) if found.power_watts else "–",
            price,
        )
        mark = " class='chosen'" if row.device.name == chosen else ""
        body = "".join(f"<td class='num'>{escape(cell)}</td>" for cell in cells)
        rows.append(f"<tr{mark}><td>{escape(row.device.name)}</td>{body}</tr>")
    names = (
        "device",
        "devices",
        "layout",
        "dtypes",
        "TTFT P50",
        "TPOT P50",
        "tok/s",
        "watts",
        "price per hour",
    )
    head = "".join(f"<th>{name}</th>" for name in names)
    return _panel(
        "Devices for this workload",
        f"<table class='ranking'><tr>{head}</tr>{''.join(rows)}</table>",
        "The smallest plan on each that keeps the promise; those of known price first, then by number of "
        "devices and power. Layout: replicas × tensor (TP), expert (EP) and pipeline (PP) parallel.",
    )


def _method(plan: Plan) -> str:
    notes = "".join(f"<li>{escape(note)}</li>" for note in plan.question.model.architecture.notes)
    return (
        "<footer><p>Every predicted figure stands with its band: the errors of the step model on measured "
        "points that it was not fitted to (rooftree plan validate). TTFT comes from a simulated "
        "load, stated above. "
        f"Seed {plan.question.workload.seed}.</p>{f'<ul>{notes}</ul>' if notes else ''}</footer>"
    )


def _panel(title: str, body: str, note: str) -> str:
    tail = f"<p class='small'>{escape(note)}</p>" if note else ""
    return f"<section class='panel'><h2>{escape(title)}</h2>{body}{tail}</section>"


def _pair(one: str, other: str) -> str:
    return f"<div class='pair'>{one}{other}</div>"
