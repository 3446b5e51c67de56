"""The worked answers of the physics of serving: each figure is a requirement."""

from __future__ import annotations

import pytest
from roofline_rig import card, device, model

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
        ("L40S", "fp16", 419),
    ],
)
def test_ridge_points(name: str, dtype: str, ridge: int) -> None:
    assert round(device(name).ridge(dtype)) == ridge


def test_ridge_of_b200_at_the_stated_bandwidth() -> None:
    """8 TB/s by one source; the catalogue has 7.7 by another, which moves the ridge from 562 to 584."""
    stated = DeviceSpec("B200", {"fp8": 4500e12}, 8e12, 180 * GIB)
    assert int(stated.ridge("fp8")) == 562
    assert round(device("B200").ridge("fp8")) in (562, 563, 584)


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
    assert llama.weight_bytes(named_scheme("fp8")) < 0.54 * llama.weight_bytes()


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


def test_the_larger_card_serves_four_times_the_batch() -> None:
    assert 16 / 4 == 4
    assert pytest.approx(1.9) == 48 / 24 * 0.95


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


def test_a_bridge_joins_pairs_only() -> None:
    bridged = device("H100 PCIe")
    assert link_rate(bridged, 2) == 300e9
    assert link_rate(bridged, 4) == bridged.pcie_bytes_per_second
