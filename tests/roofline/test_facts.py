"""The worked answers of the physics of serving: each figure is a requirement.

In the order of its sections: 2 roofline (ridges, products, decode of 70B, generations), 3 weights, 4 KV,
5 what fits (24 and 48 GB), 6 interconnect, 9 peaks. Sections 1, 7 and 8 have no figures.
"""

from __future__ import annotations

import pytest
from roofline_rig import card, device, model

from rooftree.planner.lengths import fixed
from rooftree.planner.models import resolve_model
from rooftree.planner.plan import make_plan
from rooftree.planner.question import Question
from rooftree.planner.workload import Promise, Workload
from rooftree.roofline.batch import RequestTokens, batch_of
from rooftree.roofline.costs import model_costs
from rooftree.roofline.matmul import matmul_bytes, matmul_flop, matmul_intensity
from rooftree.roofline.memory import (
    GIB,
    MemoryOptions,
    kv_bytes_per_sequence,
    memory_budget,
    sequences_at_once,
)
from rooftree.roofline.time import arithmetic_rate, link_rate, step_time
from rooftree.roofline.work import step_work
from rooftree.specs.device import DeviceSpec
from rooftree.specs.weight_scheme import named_scheme


@pytest.mark.parametrize(
    ("name", "dtype", "ridge"),
    [
        ("H100 SXM", "fp16", 295),
        ("H100 SXM", "fp8", 591),
        ("H200 SXM", "fp8", 412),
        ("B200 SXM", "fp8", 562),
        ("L40S", "fp16", 419),
    ],
)
def test_ridge_points(name: str, dtype: str, ridge: int) -> None:
    assert round(device(name).ridge(dtype)) == ridge


def test_ridge_of_b200_at_the_stated_bandwidth() -> None:
    """8 TB/s, and not the 7.7 of another source."""
    stated = DeviceSpec("B200", {"fp8": 4500e12}, 8e12, 180 * GIB)
    assert stated.ridge("fp8") == device("B200").ridge("fp8") == 562.5
    assert (device("B200").flops("fp8"), device("B200").bandwidth) == (4500e12, 8e12)


@pytest.mark.parametrize(
    ("name", "dtype", "tflops", "tb_per_s"),
    [
        ("H100 SXM", "fp16", 989, 3.35),
        ("H100 SXM", "fp8", 1979, 3.35),
        ("H200 SXM", "fp8", 1979, 4.8),
        ("L40S", "fp16", 362, 0.864),
    ],
)
def test_peaks_and_bandwidths(name: str, dtype: str, tflops: float, tb_per_s: float) -> None:
    assert device(name).flops(dtype) / 1e12 == pytest.approx(tflops, abs=1)
    assert device(name).bandwidth / 1e12 == tb_per_s


def test_matrix_product_counts() -> None:
    assert matmul_flop(3, 5, 7) == 2 * 3 * 5 * 7
    assert matmul_bytes(3, 5, 7) == 2 * (15 + 35 + 21)
    assert matmul_intensity(512, 8192, 8192) == pytest.approx(455, abs=0.5)
    assert matmul_intensity(1, 8192, 8192) == pytest.approx(1.0, abs=0.001)


def test_square_product_intensity_formula() -> None:
    for s, h in ((512, 8192), (1, 8192), (64, 4096)):
        assert matmul_intensity(s, h, h) == pytest.approx(s * h * h / (2 * s * h + h * h))


def test_a_prompt_is_compute_bound_and_a_token_is_not() -> None:
    ridge = device("H100 SXM").ridge("fp16")
    assert matmul_intensity(512, 8192, 8192) > ridge > matmul_intensity(1, 8192, 8192)


def test_decode_of_70b_at_batch_one() -> None:
    """70e9 parameters in 16 bits: 140 GB, 140 GFLOP, 1 FLOP/B, 41.8 ms, 0.34 % of the tensor cores."""
    h100 = device("H100 SXM")
    num_bytes, flop = 70e9 * 2, 2 * 70e9
    assert flop / num_bytes == 1.0
    assert num_bytes / h100.bandwidth * 1e3 == pytest.approx(41.8, abs=0.05)
    assert flop / num_bytes / h100.ridge("fp16") * 100 == pytest.approx(0.34, abs=0.005)


def test_the_exact_model_agrees() -> None:
    """The same from the layers of a real 70B: its embedding table is looked up, not read."""
    costs = model_costs(model("Llama-2-70b"))
    work = step_work(costs, batch_of([RequestTokens(1, 0)], costs.windows))
    time = step_time(work, device("H100 SXM"))
    read = 2 * (68_976_648_192 - 32_000 * 8192)
    assert work.bytes_by_kind()["weights"] == read
    assert time.seconds == pytest.approx(read / 3.35e12, rel=0.01)
    assert time.binding == "bandwidth"
    assert work.intensity == pytest.approx(1.0, rel=0.01)
    assert time.arithmetic_fraction * 100 == pytest.approx(0.34, abs=0.01)


def test_batch_multiplies_flop_over_the_same_weights() -> None:
    costs = model_costs(model("Llama-2-70b"))
    one, many = (step_work(costs, batch_of([RequestTokens(1, 100, count=b)], costs.windows)) for b in (1, 64))
    assert many.flop == pytest.approx(64 * one.flop)
    assert many.bytes_by_kind()["weights"] == one.bytes_by_kind()["weights"]


def test_generations() -> None:
    a100, h100, h200 = device("A100 80GB SXM"), device("H100 SXM"), device("H200 SXM")
    assert h100.flops("fp8") / a100.flops("bf16") == pytest.approx(6.3, abs=0.1)
    assert h100.bandwidth / a100.bandwidth == pytest.approx(1.6, abs=0.05)
    assert h200.bandwidth > h100.bandwidth
    assert h200.memory_bytes > h100.memory_bytes
    assert h200.flops("fp8") == pytest.approx(h100.flops("fp8"), rel=0.01)


def test_a_precision_that_the_chip_lacks_gains_no_arithmetic() -> None:
    a100 = device("A100 80GB SXM")
    assert "fp8" not in a100.peak_flops
    assert arithmetic_rate(a100, "fp8") == a100.flops("bf16")


def test_weights_of_llama_2_7b() -> None:
    llama = model("Llama-2-7b")
    assert llama.num_parameters == 6_738_415_616
    assert llama.weight_bytes() / 1e9 == pytest.approx(13.48, abs=0.005)
    assert 7e9 * 2 == 14e9
    assert llama.weight_bytes() / 1e9 == pytest.approx(13, abs=0.5)
    assert llama.weight_bytes(named_scheme("fp8")) < 0.54 * llama.weight_bytes()


def test_fp8_doubles_the_tensor_rate_where_the_chip_has_it() -> None:
    for name in ("H100 SXM", "H200 SXM", "B200", "L40S"):
        assert device(name).flops("fp8") == pytest.approx(2 * device(name).flops("fp16"), rel=0.02)


@pytest.mark.parametrize(
    ("name", "per_token", "sequences", "tokens", "total"),
    [
        ("Llama-2-7b", 524_288, 1, 2_048, 1_073_741_824),
        ("Llama-2-7b", 524_288, 16, 4_096, 32 * GIB),
        ("Llama-3.1-70B", 327_680, 1, 131_072, 40 * GIB),
    ],
)
def test_kv_cache(name: str, per_token: int, sequences: int, tokens: int, total: int) -> None:
    llama = model(name)
    assert llama.kv_bytes_per_token("fp16") == per_token
    assert sequences * kv_bytes_per_sequence(llama, tokens, kv_dtype="fp16") == total


def test_kv_of_a_full_context_in_both_units() -> None:
    size = kv_bytes_per_sequence(model("Llama-3.1-70B"), 131_072, kv_dtype="fp16")
    assert (size / GIB, round(size / 1e9, 1)) == (40, 42.9)
    assert model("Llama-2-7b").kv_bytes_per_token("fp16") == 0.5 * 2**20


def test_kv_of_sixteen_sequences_is_more_than_the_weights() -> None:
    llama = model("Llama-2-7b")
    assert 16 * kv_bytes_per_sequence(llama, 4096) > llama.weight_bytes()


@pytest.mark.parametrize(("gib", "by_formula", "with_reserve"), [(24, 5, 4), (48, 17, 16)])
def test_what_fits_on_a_card(gib: int, by_formula: int, with_reserve: int) -> None:
    """Llama-2-7b at 16 bits, 2 GiB of KV per sequence of 4,096 tokens."""
    llama = model("Llama-2-7b")
    size = kv_bytes_per_sequence(llama, 4096)
    assert size == 2 * GIB
    budget = memory_budget(
        llama,
        card(gib),
        options=MemoryOptions(usable_fraction=1.0, max_batched_tokens=8192, runtime_bytes=GIB),
    )
    assert sequences_at_once(budget.total - budget.weights, size) == by_formula
    assert sequences_at_once(budget.kv, size) == with_reserve


def test_the_larger_card_serves_four_times_the_batch_at_less_than_half_the_price_of_each() -> None:
    llama = model("Llama-2-7b")
    options = MemoryOptions(usable_fraction=1.0, max_batched_tokens=8192, runtime_bytes=GIB)
    small, large = (
        sequences_at_once(
            memory_budget(llama, card(gib), options=options).kv, kv_bytes_per_sequence(llama, 4096)
        )
        for gib in (24, 48)
    )
    assert large / small == 4
    assert (1.9 / large) / (1.0 / small) < 0.5


def test_what_must_fit_is_the_peak_at_the_end_of_generation() -> None:
    """A sequence is sized with its whole answer, not as it is when it begins."""
    workload = Workload(fixed(1024), fixed(3072), 1)
    assert workload.longest() == 4096
    assert kv_bytes_per_sequence(model("Llama-2-7b"), workload.longest()) == 2 * GIB


def test_links() -> None:
    h100 = device("H100 SXM")
    assert h100.link is not None
    assert h100.link.bidirectional_bytes_per_second == 900e9
    assert link_rate(h100, 8) == 450e9
    # Eight devices wired directly share 900 over 7 peers.
    assert pytest.approx(128, abs=1) == 900 / 7
    # Memory is about 50 times quicker than PCIe, 18 times a link of 900 GB/s over a network of 50.
    assert h100.bandwidth / (h100.pcie_bytes_per_second or 0) > 50
    assert 900 / 50 == 18


def test_beyond_the_linked_devices_messages_are_many_times_slower() -> None:
    h100 = device("H100 SXM")
    assert link_rate(h100, 8) / link_rate(h100, 16) > 7
    assert link_rate(device("L40S"), 8) == device("L40S").pcie_bytes_per_second


@pytest.mark.parametrize("name", ["Llama-3.1-70B", "Llama-3.1-405B", "Mixtral-8x22B"])
def test_a_replica_stays_inside_one_node_and_more_replicas_meet_the_traffic(name: str) -> None:
    for clients in (1, 4000):
        asked = Question(
            resolve_model(name),
            Workload(fixed(500), fixed(100), clients),
            device("H200 SXM"),
            kv_dtype="bf16",
        )
        chosen = make_plan(asked, with_ranking=False).chosen
        assert chosen is not None
        assert chosen.deployment.parallel.devices_per_replica <= 8
    assert chosen.deployment.parallel.replicas > 1


def test_a_bridge_joins_pairs_only() -> None:
    bridged = device("H100 PCIe")
    assert link_rate(bridged, 2) == 300e9
    assert link_rate(bridged, 4) == bridged.pcie_bytes_per_second


def test_a_peak_of_four_times_the_load_is_judged() -> None:
    """What is admitted keeps its promise; what the peak needs besides is said in devices."""
    load = Workload(fixed(500), fixed(200), 48)
    asked = Question(
        resolve_model("Llama-3.1-8B"), load, device("L40S"), promise=Promise(tpot=0.05), peak_factor=4.0
    )
    answers = make_plan(asked, with_ranking=False).answers
    assert answers.peak is not None
    assert answers.peak.workload.concurrency == 4 * 48
    assert answers.largest_concurrency is not None
    assert answers.peak.meets == (answers.largest_concurrency >= 4 * 48)
    assert (answers.peak_devices or 0) > (answers.fewest_devices or 0)
