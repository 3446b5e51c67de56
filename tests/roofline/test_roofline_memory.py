"""The memory budget: per device, under every plan, never on the hopeful side."""

from __future__ import annotations

import pytest
from roofline_rig import GIB, card, device, model

from rooftree.roofline.memory import (
    MemoryOptions,
    activation_bytes,
    kv_bytes_per_sequence,
    memory_budget,
    sequences_at_once,
    stage_weight_bytes,
)
from rooftree.roofline.parallel import Parallel
from rooftree.specs.weight_scheme import named_scheme


def test_parts_add_up() -> None:
    budget = memory_budget(model("Llama-3.1-8B"), device("H100 SXM"))
    assert budget.usable == int(80 * GIB * 0.9)
    assert budget.weights + budget.activations + budget.runtime + budget.kv == budget.usable


@pytest.mark.parametrize("name", ["Llama-3.1-70B", "Qwen3-235B-A22B", "DeepSeek-V3", "gpt-oss-120b"])
def test_shares_hold_the_whole(name: str) -> None:
    architecture = model(name)
    whole = architecture.weight_bytes()
    for parallel in (Parallel(4), Parallel(1, 4), Parallel(2, 2), Parallel(8), Parallel(8, expert=8)):
        share = stage_weight_bytes(architecture, parallel)
        assert share * parallel.devices_per_replica >= whole
        assert share < whole / parallel.devices_per_replica * 1.35


def test_a_70b_in_16_bits_needs_more_than_one_card() -> None:
    architecture, h100 = model("Llama-3.1-70B"), device("H100 SXM")
    assert not memory_budget(architecture, h100).fits
    tight = memory_budget(architecture, h100, scheme=named_scheme("fp8"))
    assert sequences_at_once(tight.kv, kv_bytes_per_sequence(architecture, 8192)) <= 1
    assert memory_budget(architecture, h100, Parallel(2), scheme=named_scheme("fp8")).fits
    assert memory_budget(architecture, h100, Parallel(4)).fits


def test_windows_as_allocated_here_and_elsewhere() -> None:
    """A window of 128 on 18 of 36 layers, 8 KV heads of 64."""
    architecture = model("gpt-oss-120b")
    ours = kv_bytes_per_sequence(architecture, 8192)
    aware = kv_bytes_per_sequence(architecture, 8192, options=MemoryOptions(windowed=True))
    per_layer = 2 * 8 * 64 * 2
    assert ours == 36 * 8192 * per_layer
    assert aware == 18 * 8192 * per_layer + 18 * 128 * per_layer


def test_sequences_take_whole_blocks() -> None:
    architecture = model("Llama-3.1-8B")
    one, sixteen, seventeen = (kv_bytes_per_sequence(architecture, n) for n in (1, 16, 17))
    assert one == sixteen
    assert seventeen == 2 * sixteen


def test_nothing_fits_where_nothing_is_left() -> None:
    assert sequences_at_once(-5, 10) == 0
    assert not memory_budget(model("Llama-2-7b"), card(8)).fits


def test_expert_parallel_deals_whole_experts() -> None:
    architecture = model("DeepSeek-V3")
    cut = stage_weight_bytes(architecture, Parallel(8))
    dealt = stage_weight_bytes(architecture, Parallel(8, expert=8))
    assert dealt == pytest.approx(cut, rel=0.02)


MEASURED_WITH = {
    "Llama": "Llama-3.1-8B",
    "Qwen2": "Qwen2.5-7B",
    "Qwen3": "Qwen3-8B",
    "Mixtral": "Mixtral-8x7B",
}
MEASURED_WITH |= {"DeepseekV2": "DeepSeek-V2-Lite", "Qwen3Moe": "Qwen3-30B-A3B", "Gemma3": "gemma-3-4b"}
MEASURED_WITH |= {"Granite": "granite-3.1-8b"}


@pytest.mark.parametrize(
    ("family", "gib"),
    [
        ("Llama", 1.89),
        ("Qwen2", 2.25),
        ("Qwen3", 2.21),
        ("Mixtral", 1.21),
        ("DeepseekV2", 1.93),
        ("Gemma3", 3.94),
        ("Granite", 0.85),
    ],
)
def test_activations_against_those_that_were_measured(family: str, gib: float) -> None:
    """P0299 to P0307: vLLM 0.19 on H100, as recorded by their source."""
    predicted = activation_bytes(model(MEASURED_WITH[family]), 8192, 1024)
    assert predicted / GIB == pytest.approx(gib, rel=0.35)


def test_the_saturation_of_a_measured_server() -> None:
    """NIM, Llama-3.3-70B in fp8 on two H100, 5,000 in and 500 out: 85.7 sequences ran at saturation."""
    architecture = model("Llama-3.3-70B")
    parallel = Parallel(2)
    budget = memory_budget(architecture, device("H100 SXM"), parallel, scheme=named_scheme("fp8"))
    size = kv_bytes_per_sequence(architecture, 5500, parallel, kv_dtype="fp8")
    assert sequences_at_once(budget.kv, size) == pytest.approx(85.7, rel=0.05)


def test_attention_on_every_device_costs_copies_of_all_but_the_experts() -> None:
    """Data-parallel attention: latents are not replicated, weights outside the experts are."""
    architecture, parallel = model("DeepSeek-V3"), Parallel(expert=8)
    by_role = architecture.weight_bytes_by_role()
    others = sum(by_role.values()) - by_role["experts"]
    assert stage_weight_bytes(architecture, parallel) == pytest.approx(others + by_role["experts"] / 8)
    h200 = device("H200 SXM")
    cut, spread = (memory_budget(architecture, h200, p) for p in (Parallel(8), parallel))
    assert cut.kv > spread.kv > 0
    # Each of eight devices holds other sequences, so the replica holds several times as many.
    assert 8 * spread.kv > 3 * cut.kv
