"""The work and the seconds of a step: exact sums, bounds, and the folded clock."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from roofline_rig import device, model

from rooftree.errors import ConfigError
from rooftree.roofline.batch import Batch, RequestTokens, Span, Window, batch_of
from rooftree.roofline.clock import step_clock
from rooftree.roofline.costs import model_costs
from rooftree.roofline.efficiency import PEAK, Efficiency, ProductRates
from rooftree.roofline.experts import busiest_share, experts_touched
from rooftree.roofline.parallel import Parallel
from rooftree.roofline.time import arithmetic_rate, step_time
from rooftree.roofline.work import step_work
from rooftree.specs.device import DeviceSpec
from rooftree.specs.weight_scheme import named_scheme

MODELS = ("SmolLM2-135M", "Llama-3.1-8B", "gpt-oss-120b", "DeepSeek-V3", "Mixtral-8x7B", "gemma-3-4b")

EFFICIENCY = Efficiency(0.8, 0.7, 0.6, 0.5, 0.75, 0.6, 3e-5, 1e-5, 7e-6, 1e-3, 8e-6, 2e-5)

PROBED = replace(
    EFFICIENCY,
    prefill_attention=1.7,
    activation_seconds=2e-12,
    products=(
        ProductRates("bf16", (1, 2, 8, 64), (0.01, 0.02, 0.1, 0.6)),
        ProductRates("q4_0", (1, 16), (0.02, 0.5)),
    ),
)

requests = st.lists(
    st.builds(
        RequestTokens,
        new=st.integers(1, 3000),
        context=st.integers(0, 40_000),
        count=st.integers(1, 40),
        outputs=st.integers(0, 1),
    ),
    min_size=1,
    max_size=6,
)


@given(
    st.integers(0, 3000),
    st.integers(0, 3000),
    st.one_of(
        st.just(Window()),
        st.builds(Window, st.integers(1, 500), st.sampled_from(("sliding", "chunked"))),
    ),
)
def test_pairs_are_those_counted_one_by_one(new: int, context: int, window: Window) -> None:
    def seen(position: int) -> int:
        if window.size is None:
            return position + 1
        if window.kind == "sliding":
            return min(position + 1, window.size)
        return position % window.size + 1

    assert window.pairs(new, context) == sum(seen(context + i) for i in range(new))


@given(requests, st.integers(1, 700))
def test_a_batch_is_the_sum_of_its_requests(items: list[RequestTokens], size: int) -> None:
    windows = (Window(), Window(size))
    whole = batch_of(items, windows)
    singles = [batch_of([replace(item, count=1)] * item.count, windows) for item in items]
    assert whole.tokens == sum(batch.tokens for batch in singles)
    assert whole.outputs == sum(batch.outputs for batch in singles)
    for index in range(2):
        for name in ("decode", "prefill_pairs", "prefill_reads"):
            assert getattr(whole.spans[index], name) == sum(
                getattr(batch.spans[index], name) for batch in singles
            )


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(MODELS),
    requests,
    st.sampled_from((1, 2, 4)),
    st.sampled_from((1, 2)),
    st.sampled_from((0, 1, 4)),
    st.sampled_from((PEAK, EFFICIENCY, PROBED)),
    st.sampled_from((0.0, 0.8)),
)
def test_the_clock_is_the_step_time(
    name: str,
    items: list[RequestTokens],
    tensor: int,
    pipeline: int,
    groups: int,
    efficiency: Efficiency,
    skew: float,
) -> None:
    parallel = Parallel(tensor=tensor, pipeline=pipeline, expert=max(1, groups * tensor))
    costs = model_costs(model(name), parallel)
    h100 = device("H100 SXM")
    batch = batch_of(items, costs.windows)
    expected = step_time(step_work(costs, batch, skew=skew), h100, efficiency).seconds
    # A mixture of attention kinds is added up part by part here, in one sum there.
    assert step_clock(costs, h100, efficiency, skew=skew).seconds(batch) == pytest.approx(expected, rel=1e-3)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(MODELS), requests, st.sampled_from((PEAK, EFFICIENCY, PROBED)))
def test_an_estimate_counts_the_work_of_the_step(
    name: str, items: list[RequestTokens], efficiency: Efficiency
) -> None:
    costs = model_costs(model(name))
    h100 = device("H100 SXM")
    batch = batch_of(items, costs.windows)
    work = step_work(costs, batch)
    time = step_time(work, h100, efficiency)
    estimate = step_clock(costs, h100, efficiency).estimate(batch)
    assert estimate.seconds == pytest.approx(time.seconds, rel=1e-3)
    assert estimate.bytes == pytest.approx(work.bytes)
    assert estimate.flop == pytest.approx(work.flop)
    assert estimate.bandwidth_seconds / time.seconds == pytest.approx(time.bandwidth_fraction)
    assert estimate.arithmetic_seconds / time.seconds == pytest.approx(time.arithmetic_fraction)
    assert time.by_limit()[estimate.limit] == pytest.approx(max(time.by_limit().values()), rel=1e-2)


def test_measured_products_are_met_and_grow_evenly_between() -> None:
    rates = ProductRates("q4_0", (1, 4, 16), (0.02, 0.08, 0.4))
    for rows, fraction in zip(rates.rows, rates.fractions, strict=True):
        assert rates.equivalent_rows(rows) == pytest.approx(rows / fraction)
    assert rates.equivalent_rows(10) == pytest.approx((4 / 0.08 + 16 / 0.4) / 2)
    assert rates.equivalent_rows(160) == pytest.approx(10 * rates.equivalent_rows(16))
    assert rates.equivalent_rows(0.5) == rates.equivalent_rows(1)
    assert rates.equivalent_rows(0) == 0


def test_a_format_without_measurement_is_taken_as_its_neighbour() -> None:
    q4, q8, fp16 = (ProductRates(name, (1,), (0.5,)) for name in ("q4_0", "q8_0", "fp16"))
    efficiency = Efficiency(arithmetic=0.3, products=(q4, q8, fp16))
    for name, expected in (("q4_0", q4), ("q4_1", q4), ("q6_k", q8)):
        assert efficiency.product_mix([(name, 1.0)], "packed").rates == ((expected, 1.0),)
    for name in ("bf16", "fp32", "fp8", "my own"):
        assert efficiency.product_mix([(name, 1.0)], "fp32").rates == ((fp16, 1.0),)
    assert replace(efficiency, products=(q4,)).product_mix([("bf16", 1.0)], "bf16").rates == ()


def test_formats_of_one_product_take_their_shares() -> None:
    efficiency = Efficiency(
        products=(ProductRates("q4_0", (1,), (0.5,)), ProductRates("q8_0", (1,), (0.25,)))
    )
    half = efficiency.product_mix([("q4_0", 0.5), ("q8_0", 0.5)], "packed")
    assert half.equivalent_rows(2) == pytest.approx(0.5 * 2 / 0.5 + 0.5 * 2 / 0.25)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(MODELS), requests, st.sampled_from(("H100 SXM", "A100 80GB SXM", "L40S")))
def test_no_step_is_faster_than_the_roofline(name: str, items: list[RequestTokens], gpu: str) -> None:
    costs = model_costs(model(name))
    spec = device(gpu)
    work = step_work(costs, batch_of(items, costs.windows))
    time = step_time(work, spec)
    least = sum(part.flop / arithmetic_rate(spec, part.arithmetic) for part in work.parts)
    assert time.seconds >= max(work.bytes / spec.bandwidth, least) * (1 - 1e-9)
    assert time.bandwidth_fraction <= 1 + 1e-9
    assert time.arithmetic_fraction <= 1 + 1e-9
    assert sum(part.seconds for part in time.parts) == pytest.approx(time.seconds)
    assert step_time(work, spec, EFFICIENCY).seconds > time.seconds


def test_flop_are_two_per_active_parameter_and_token() -> None:
    for name in ("Llama-3.1-8B", "Mixtral-8x7B", "DeepSeek-V3"):
        architecture = model(name)
        costs = model_costs(architecture)
        work = step_work(costs, batch_of([RequestTokens(1, 0)], costs.windows))
        active = architecture.num_parameters_active - architecture.vocab_size * architecture.hidden_size
        flop = work.flop_by_kind()
        products = flop["linear"] + flop.get("experts", 0.0) + flop["head"]
        assert products == pytest.approx(2 * active, rel=0.002)


def test_bytes_of_a_step_are_those_stored() -> None:
    architecture = model("Llama-3.1-8B")
    costs = model_costs(architecture)
    work = step_work(costs, batch_of([RequestTokens(1, 999, count=8)], costs.windows))
    kinds = work.bytes_by_kind()
    assert kinds["weights"] == architecture.weight_bytes() - 2 * 128_256 * 4096
    assert kinds["kv_read"] == 8 * 1000 * 131_072
    assert kinds["kv_write"] == 8 * 131_072
    assert kinds["logits"] == 8 * 128_256 * 4


def test_a_chunk_of_a_prompt_needs_no_head() -> None:
    costs = model_costs(model("Llama-3.1-8B"))
    chunk = step_work(costs, batch_of([RequestTokens(512, 0, outputs=0)], costs.windows))
    assert chunk.flop_by_kind()["head"] == 0
    assert chunk.bytes_by_kind()["logits"] == 0


def test_chunks_add_up_to_the_prompt() -> None:
    windows = (Window(), Window(128))
    whole = batch_of([RequestTokens(1000)], windows)
    parts = [batch_of([RequestTokens(250, done)], windows) for done in range(0, 1000, 250)]
    for index in range(2):
        assert sum(part.spans[index].prefill_pairs for part in parts) == whole.spans[index].prefill_pairs


def test_a_tied_head_is_read_once_more() -> None:
    smol = model("SmolLM2-135M")
    costs = model_costs(smol)
    work = step_work(costs, batch_of([RequestTokens(1)], costs.windows))
    assert work.bytes_by_kind()["weights"] == smol.weight_bytes()


def test_experts_touched() -> None:
    assert experts_touched(128, 8, 1) == pytest.approx(8)
    assert experts_touched(8, 2, 2) == pytest.approx(8 * (1 - 0.75**2))
    assert experts_touched(128, 8, 10_000) == pytest.approx(128)
    assert experts_touched(128, 8, 0) == 0
    for tokens in (1, 4, 16, 64):
        flat, steep = experts_touched(128, 8, tokens), experts_touched(128, 8, tokens, 1.0)
        assert steep <= flat + 1e-9
    assert experts_touched(16, 4, 1, 2.0) == pytest.approx(4)


def test_the_busiest_device_has_at_least_the_mean() -> None:
    assert busiest_share(100, 8, 1) == 1
    assert 1 < busiest_share(1000, 8, 8) < busiest_share(10, 8, 8) <= 8


def test_latent_attention_is_replicated_and_never_divided() -> None:
    deepseek = model("DeepSeek-V3")
    assert deepseek.kv_bytes_per_token("bf16") == 70_272
    for tensor in (1, 2, 8):
        costs = model_costs(deepseek, Parallel(tensor=tensor))
        assert costs.kv_write_bytes == 70_272


def test_kv_heads_never_fall_below_one_per_device() -> None:
    qwen = model("Qwen3-235B-A22B")
    four, eight = (model_costs(qwen, Parallel(tensor=n)).kv_write_bytes for n in (4, 8))
    assert four == eight == qwen.kv_bytes_per_token() / 4


def test_tensor_parallel_costs_messages() -> None:
    architecture, h100 = model("Llama-3.1-70B"), device("H100 SXM")
    items = [RequestTokens(1, 1000, count=16)]
    times = {}
    for tensor in (1, 4):
        costs = model_costs(architecture, Parallel(tensor=tensor))
        work = step_work(costs, batch_of(items, costs.windows))
        times[tensor] = step_time(work, h100, Efficiency(all_reduce_seconds=5e-6))
    assert costs.all_reduces == 160
    assert times[1].by_limit()["interconnect"] == 0
    message = 16 * 8192 * 2
    expected = 160 * (5e-6 + 2 * 3 / 4 * message / 450e9)
    assert times[4].by_limit()["interconnect"] == pytest.approx(expected)
    assert times[1].seconds / 4 < times[4].seconds < times[1].seconds / 3


def test_a_pipeline_keeps_its_stages_busy_only_with_enough_sequences() -> None:
    architecture, h100 = model("Llama-3.1-8B"), device("H100 SXM")
    costs = model_costs(architecture, Parallel(pipeline=4))
    alone = step_time(step_work(costs, batch_of([RequestTokens(1, 10)], costs.windows)), h100)
    full = step_time(step_work(costs, batch_of([RequestTokens(1, 10, count=8)], costs.windows)), h100)
    assert alone.pipeline_idle == 0.75
    assert full.pipeline_idle == 0.0


def test_launching_binds_a_step_that_is_too_small() -> None:
    costs = model_costs(model("SmolLM2-135M"))
    work = step_work(costs, batch_of([RequestTokens(1)], costs.windows))
    slow = step_time(work, device("H100 SXM"), Efficiency(launch_seconds=1e-3))
    assert slow.seconds == pytest.approx(30e-3)
    assert slow.binding == "overhead"


def test_binding_limits_by_name() -> None:
    costs, h100 = model_costs(model("Llama-3.1-8B")), device("H100 SXM")
    decode = step_time(step_work(costs, batch_of([RequestTokens(1, 100)], costs.windows)), h100)
    prefill = step_time(step_work(costs, batch_of([RequestTokens(4096)], costs.windows)), h100)
    assert (decode.binding, prefill.binding) == ("bandwidth", "arithmetic")


def test_measured_products_that_wait_for_their_weights_are_bound_by_bandwidth() -> None:
    costs, h100 = model_costs(model("Llama-3.1-8B")), device("H100 SXM")
    read = h100.bandwidth / h100.peak_flops["bf16"]  # of the peak, with one row
    efficiency = Efficiency(products=(ProductRates("bf16", (1, 64), (read / 1.03, 20 * read)),))
    limits = []
    for rows in (1, 64):
        batch = batch_of([RequestTokens(1, 1, count=rows)], costs.windows)
        time = step_time(step_work(costs, batch), h100, efficiency)
        estimate = step_clock(costs, h100, efficiency).estimate(batch)
        assert estimate.seconds == pytest.approx(time.seconds)
        assert estimate.limit == time.binding
        limits.append(estimate.limit)
    assert limits == ["bandwidth", "arithmetic"]


def test_fp8_products_run_at_the_fp8_rate_where_there_is_one() -> None:
    architecture = model("Llama-3.1-8B")
    batch = [RequestTokens(4096)]
    for gpu, factor in (("H100 SXM", 1.8), ("A100 80GB SXM", 1.0)):
        seconds = []
        for scheme in (None, named_scheme("fp8")):
            costs = model_costs(architecture, scheme=scheme)
            work = step_work(costs, batch_of(batch, costs.windows))
            seconds.append(step_time(work, device(gpu)).seconds)
        assert seconds[0] / seconds[1] == pytest.approx(factor, rel=0.12)


def test_packed_weights_run_in_what_the_device_has() -> None:
    costs = model_costs(model("Llama-3.1-8B"), scheme=named_scheme("q4_1"))
    assert {matrix.arithmetic for matrix in costs.matrices} == {"packed", "fp32"}
    processor = DeviceSpec("processor", {"fp32": 1e11, "int8": 4e11}, 2e10, 2**34)
    assert arithmetic_rate(processor, "packed") == 4e11
    assert arithmetic_rate(processor, "bf16") == 1e11
    assert arithmetic_rate(device("H100 SXM"), "packed") == device("H100 SXM").flops("bf16")


def test_unknown_links_are_refused_with_what_to_do() -> None:
    lonely = DeviceSpec("lonely", {"bf16": 1e12}, 1e11, 2**30)
    costs = model_costs(model("Llama-3.1-8B"), Parallel(tensor=2))
    work = step_work(costs, batch_of([RequestTokens(1)], costs.windows))
    with pytest.raises(ConfigError, match="pcie_bytes_per_second"):
        step_time(work, lonely)


@pytest.mark.parametrize(
    "fields", [{"tensor": 0}, {"pipeline": -1}, {"replicas": 0}, {"expert": 3, "tensor": 4}]
)
def test_impossible_plans_are_refused(fields: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        Parallel(**fields)


def test_windows_bound_what_is_read() -> None:
    costs = model_costs(model("gpt-oss-120b"))
    assert {window.size for window in costs.windows} == {None, 128}
    far = batch_of([RequestTokens(1, 50_000)], costs.windows)
    sizes = {window.size: span.decode for window, span in zip(costs.windows, far.spans, strict=True)}
    assert sizes == {None: 50_001, 128: 128}


def test_an_empty_span_costs_nothing() -> None:
    costs = model_costs(model("Llama-3.1-8B"))
    batch = Batch(0, 0, 0, tuple(Span() for _ in costs.windows))
    assert math.isfinite(step_clock(costs, device("L40S")).seconds(batch))


def test_spread_experts_are_read_in_parts_and_reached_over_the_link() -> None:
    """Eight devices, each attending for its own sequences: work of one, and what it sends."""
    architecture, h200 = model("DeepSeek-V3"), device("H200 SXM")
    costs = model_costs(architecture, Parallel(expert=8))
    work = step_work(costs, batch_of([RequestTokens(1, 1000, count=16)], costs.windows))
    experts = next(part for part in work.parts if part.name == "experts")
    routed = architecture.weight_bytes_by_role()["experts"]
    touched = 1 - (1 - 8 / 256) ** (8 * 16)
    busiest = busiest_share(128, 8, 8)
    assert experts.weights == pytest.approx(min(1.0, touched * busiest) * routed / 8, rel=1e-3)
    # Each device computes as many token-expert pairs as its own tokens have, and more if it is the busiest.
    one = model_costs(architecture)
    alone = step_work(one, batch_of([RequestTokens(1, 1000, count=16)], one.windows)).flop_by_kind()
    assert experts.flop == pytest.approx(alone["experts"] * busiest)
    assert work.flop_by_kind()["linear"] == alone["linear"]
    # 58 expert layers, there and back; a token's 8 experts are on 5.25 of 8 devices, one eighth of them here.
    assert (work.all_reduces, work.all_to_alls) == (0, 116)
    copies = 8 * (1 - (7 / 8) ** 8) * 7 / 8
    assert work.exchange_bytes == pytest.approx(16 * copies * 7168 * 2)
    seconds = step_time(work, h200, Efficiency(all_reduce_seconds=1e-5)).by_limit()["interconnect"]
    assert seconds == pytest.approx(116 * (1e-5 + work.exchange_bytes / 450e9))


def test_experts_within_a_tensor_group_are_added_up_by_its_all_reduce() -> None:
    costs = model_costs(model("DeepSeek-V3"), Parallel(8, expert=8))
    assert (costs.all_reduces, costs.all_to_alls, costs.exchange_bytes) == (122, 0, 0.0)
    assert costs.parallel.groups == 1


def test_devices_of_a_replica_with_spread_experts() -> None:
    spread = Parallel(2, pipeline=2, expert=8, replicas=3)
    assert (spread.groups, spread.stage_devices, spread.devices_per_replica) == (4, 8, 16)
    assert (spread.devices, spread.schedulers) == (48, 12)
