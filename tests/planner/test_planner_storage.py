"""Dtypes and layouts that the question leaves open: published first, every change by its name."""

from __future__ import annotations

from typing import Any

import pytest

from rooftree.errors import ConfigError
from rooftree.planner.deployment import PUBLISHED, possible_expert_sizes
from rooftree.planner.lengths import fixed
from rooftree.planner.models import resolve_model
from rooftree.planner.plan import Plan, make_plan
from rooftree.planner.question import Question
from rooftree.planner.report_json import plan_json
from rooftree.planner.search import shapes
from rooftree.planner.storage import changes, storages
from rooftree.planner.workload import Promise, Workload
from rooftree.specs.catalogue import find_device


def question(model: str, device: str, **more: Any) -> Question:
    workload = Workload(
        fixed(more.pop("input", 1000)), fixed(more.pop("output", 200)), more.pop("concurrency", 8)
    )
    return Question(resolve_model(model), workload, find_device(device), **more)


def ask(model: str, device: str, **more: Any) -> Plan:
    return make_plan(question(model, device, **more))


def dtypes(model: str, device: str, **more: Any) -> list[tuple[str | None, str | None]]:
    asked = question(model, device, **more)
    assert asked.device is not None
    return [(settled.weight_dtype, settled.kv_dtype) for settled in storages(asked, asked.device)]


def test_published_dtypes_come_first_and_smaller_ones_as_the_chip_likes_them() -> None:
    assert dtypes("Llama-3.1-70B", "H100 SXM") == [
        (weights, cache) for weights in (PUBLISHED, "fp8", "awq") for cache in ("bf16", "fp8")
    ]
    assert {weights for weights, _ in dtypes("Llama-3.1-70B", "B200 SXM")} == {PUBLISHED, "fp8", "nvfp4"}
    assert {weights for weights, _ in dtypes("Llama-3.1-70B", "A100 80GB SXM")} == {PUBLISHED, "int8", "awq"}


def test_what_is_published_small_is_not_offered_again() -> None:
    assert {weights for weights, _ in dtypes("gpt-oss-120b", "H100 SXM")} == {PUBLISHED}
    assert {weights for weights, _ in dtypes("DeepSeek-V3", "H100 SXM")} == {PUBLISHED, "awq"}


def test_what_the_user_states_is_kept() -> None:
    assert dtypes("Llama-3.1-70B", "H100 SXM", weight_dtype="fp8", kv_dtype="bf16") == [("fp8", "bf16")]
    assert dtypes("Llama-3.1-8B", "L4", weight_dtype=PUBLISHED) == [(PUBLISHED, "bf16"), (PUBLISHED, "fp8")]


def test_published_dtypes_are_planned_where_they_serve() -> None:
    plan = ask("Llama-3.1-70B", "H100 SXM", promise=Promise(tpot=0.05))
    assert plan.chosen is not None
    assert plan.chosen.meets
    assert (plan.chosen.deployment.weight_dtype, plan.chosen.deployment.kv_dtype) == (PUBLISHED, "bf16")
    assert changes(plan.chosen.deployment) == ()
    needed = {
        (o.weight_dtype, o.kv_dtype): o.smallest.deployment.parallel.devices
        for o in plan.options
        if o.smallest is not None
    }
    assert needed[PUBLISHED, "bf16"] == plan.chosen.deployment.parallel.devices > needed["fp8", "fp8"]


def test_a_smaller_dtype_is_named_with_its_price_where_only_that_serves() -> None:
    plan = ask("Llama-3.1-70B", "H100 SXM", count=1, concurrency=1)
    assert plan.chosen is not None
    assert (plan.chosen.fits, plan.chosen.meets) == (True, True)
    assert "weights in fp8 instead of bf16" in plan.verdict
    assert "quality" in plan.verdict
    (change,) = plan_json(plan)["plan"]["changes"]
    assert (change["before"], change["after"]) == ("bf16", "fp8")


def test_the_cache_is_made_smaller_before_the_weights() -> None:
    plan = ask("Llama-3.1-8B", "L4", count=1, input=60_000, output=500, concurrency=1)
    assert plan.chosen is not None
    assert (plan.chosen.deployment.weight_dtype, plan.chosen.deployment.kv_dtype) == (PUBLISHED, "fp8")
    assert "KV cache in fp8 instead of bf16" in plan.verdict


def test_stated_dtypes_are_never_changed() -> None:
    plan = ask("Llama-3.1-70B", "H100 SXM", count=1, weight_dtype=PUBLISHED, kv_dtype="bf16")
    assert plan.verdict.startswith("No plan fits: the binding limit is memory")
    assert plan.options == ()


def test_experts_are_spread_where_that_serves_more() -> None:
    """Latents are copied to every device of a tensor group; attention on each device has no copies."""
    load = {"concurrency": 256, "input": 2000, "output": 500, "count": 8}
    plan = ask("DeepSeek-V3", "H200 SXM", **load)
    cut = ask("DeepSeek-V3", "H200 SXM", expert=1, **load)
    assert plan.chosen is not None
    assert cut.chosen is not None
    assert plan.chosen.deployment.parallel.groups > 1
    assert cut.chosen.deployment.parallel.groups == 1
    assert plan.chosen.output_rate is not None
    assert cut.chosen.output_rate is not None
    assert plan.chosen.output_rate.value > cut.chosen.output_rate.value
    assert plan.chosen.deployment.parallel.devices == 8
    document = plan_json(plan)["plan"]
    groups = document["attention_groups"]
    assert document["sequences_at_once"]["per_replica_mean_length"] == plan.chosen.sequences * groups


def test_experts_are_spread_as_asked() -> None:
    plan = ask("Qwen3-235B-A22B", "H100 SXM", count=8, expert=8, tensor=8, concurrency=64)
    assert plan.chosen is not None
    parallel = plan.chosen.deployment.parallel
    assert (parallel.tensor, parallel.expert, parallel.groups) == (8, 8, 1)


@pytest.mark.parametrize(
    ("model", "fields", "message"),
    [
        ("Llama-3.1-8B", {"expert": 2}, "no routed experts"),
        ("Mixtral-8x7B", {"expert": 16}, "8 experts"),
        ("Mixtral-8x7B", {"expert": 6, "tensor": 4}, "multiple of --tp 4"),
        ("Mixtral-8x7B", {"expert": 0}, "--ep 0"),
        ("Llama-3.1-8B", {"pipeline": 33}, "--pp 33"),
        ("Llama-3.1-8B", {"peak_factor": float("nan")}, "--peak-factor"),
        ("Llama-3.1-8B", {"price": float("inf")}, "--price"),
    ],
)
def test_impossible_layouts_are_refused(model: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        question(model, "H100 SXM", **fields)


def test_dense_models_and_lonely_devices_have_nothing_to_spread() -> None:
    assert possible_expert_sizes(resolve_model("Llama-3.1-8B"), find_device("H100 SXM"), 1, 16) == [1]
    assert possible_expert_sizes(resolve_model("Mixtral-8x7B"), find_device("Trainium2"), 1, 16) == [1]
    assert possible_expert_sizes(resolve_model("Mixtral-8x7B"), find_device("H100 SXM"), 1, 16) == [
        1,
        2,
        4,
        8,
    ]
    found = shapes(question("Llama-3.1-8B", "H100 SXM"), find_device("H100 SXM"), 16)
    assert {shape.expert for shape in found} == {1}


def test_idle_replicas_serve_nobody() -> None:
    """One client keeps one of eight replicas busy: eight times its tokens would be an invention."""
    one = ask("Llama-3.1-8B", "H100 SXM", count=1, concurrency=1)
    eight = ask("Llama-3.1-8B", "H100 SXM", count=8, concurrency=1, tensor=1)
    assert one.chosen is not None
    assert eight.chosen is not None
    assert one.chosen.output_rate is not None
    assert eight.chosen.output_rate is not None
    assert eight.chosen.output_rate.value == pytest.approx(one.chosen.output_rate.value)


def test_one_replica_fewer_than_the_fewest_breaks_the_promise() -> None:
    load = {"concurrency": 300, "input": 2000, "output": 400, "promise": Promise(tpot=0.03)}
    stated = {"weight_dtype": PUBLISHED, "kv_dtype": "bf16", "expert": 1, "tensor": 8, "pipeline": 1}
    plan = ask("Qwen3-235B-A22B", "H200 SXM", **load, **stated)
    assert plan.chosen is not None
    assert plan.chosen.meets
    replicas = plan.chosen.deployment.parallel.replicas
    assert replicas > 1
    assert plan.answers.without_one is not None
    assert not plan.answers.without_one.meets


def test_a_closed_load_is_met_in_its_middle() -> None:
    """All prompts at once are a benchmark's beginning, not what users meet later."""
    plan = ask("Llama-3.1-8B", "L4", concurrency=32, input=3000, output=300, count=1, weight_dtype="fp8")
    assert plan.chosen is not None
    assert plan.chosen.ttft is not None
    assert plan.chosen.ttft["p99"].value < 4 * plan.chosen.ttft["p50"].value
