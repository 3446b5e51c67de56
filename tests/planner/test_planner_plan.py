"""Plans: what fits, what binds, and that every figure says where it comes from."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rooftree.cli.plan import command
from rooftree.errors import ConfigError, RooftreeError
from rooftree.planner.deployment import PUBLISHED
from rooftree.planner.estimate import Estimate
from rooftree.planner.lengths import fixed, parse_lengths
from rooftree.planner.models import resolve_model
from rooftree.planner.plan import Plan, make_plan, scaled
from rooftree.planner.question import Question
from rooftree.planner.report_html import plan_html
from rooftree.planner.report_json import plan_json
from rooftree.planner.workload import Promise, Workload
from rooftree.specs.catalogue import find_device, known_devices


def ask(model: str = "Llama-3.1-8B", device: str | None = "H100 SXM", **more: Any) -> Plan:
    workload = more.pop("workload", None) or Workload(
        fixed(more.pop("input", 1000)),
        fixed(more.pop("output", 200)),
        more.pop("concurrency", None if "rate" in more else 16),
        more.pop("rate", None),
        more.pop("prefix_share", 0.0),
    )
    found = find_device(device) if device else None
    return make_plan(Question(resolve_model(model), workload, found, **more))


def chosen(plan: Plan) -> Estimate:
    assert plan.chosen is not None
    return plan.chosen


def test_a_model_that_fits() -> None:
    plan = ask(count=1)
    chosen = plan.chosen
    assert chosen is not None
    assert (chosen.fits, chosen.meets) == (True, True)
    assert chosen.ttft is not None
    assert chosen.tpot is not None
    assert chosen.output_rate is not None
    assert 0.003 < chosen.tpot["p50"].value < 0.03
    assert chosen.tpot["p50"].value <= chosen.tpot["p99"].value
    assert chosen.output_rate.value == pytest.approx(
        16 * 200 / (chosen.ttft["p50"].value + 199 * chosen.tpot["p50"].value), rel=0.1
    )


def test_no_plan_names_the_limit() -> None:
    plan = ask("Llama-3.1-70B", "L4", count=1)
    assert plan.verdict.startswith("No plan fits: the binding limit is memory")
    assert "the binding limit is memory" in plan.verdict
    assert plan_json(plan)["fits"] is False


def test_one_sequence_that_cannot_fit_names_kv() -> None:
    stated = {"weight_dtype": PUBLISHED, "kv_dtype": "bf16"}
    plan = ask("Llama-3.1-8B", "L4", count=1, input=120_000, output=1000, concurrency=1, **stated)
    assert plan.chosen is not None
    assert plan.chosen.binding == "kv_capacity"


def test_a_broken_promise_names_itself() -> None:
    plan = ask(count=1, concurrency=200, promise=Promise(tpot=0.004))
    assert plan.chosen is not None
    assert (plan.chosen.meets, plan.chosen.binding) == (False, "tpot")
    assert plan.chosen.best_batch < 200


def test_an_overload_is_said_to_be_one() -> None:
    plan = ask(count=1, rate=500.0)
    assert plan.chosen is not None
    assert plan.chosen.binding == "load"
    assert "can be answered" in plan.verdict


def test_fewest_devices_keep_the_promise_and_one_fewer_does_not() -> None:
    promise = Promise(ttft=1.0, tpot=0.03)
    workload = Workload(fixed(1000), fixed(200), 400)
    plan = ask("Llama-3.1-70B", workload=workload, promise=promise, weight_dtype="fp8", kv_dtype="fp8")
    assert plan.chosen is not None
    assert plan.chosen.meets
    devices = plan.chosen.deployment.parallel.devices
    assert plan.answers.fewest_devices == devices
    tensor = plan.chosen.deployment.parallel.tensor
    fewer = ask(
        "Llama-3.1-70B",
        workload=workload,
        promise=promise,
        weight_dtype="fp8",
        kv_dtype="fp8",
        count=max(1, devices // 2),
        tensor=min(tensor, max(1, devices // 2)),
    )
    assert not (fewer.chosen and fewer.chosen.meets)


def test_the_largest_load_holds_and_a_larger_one_does_not() -> None:
    promise = Promise(tpot=0.012)
    asked = {"count": 1, "promise": promise, "weight_dtype": PUBLISHED, "kv_dtype": "bf16"}
    plan = ask(**asked)
    largest = plan.answers.largest_concurrency
    assert largest is not None
    assert largest > 1
    assert chosen(ask(concurrency=largest, **asked)).meets
    assert not chosen(ask(concurrency=2 * largest, **asked)).meets


def test_peak_and_loss_of_a_replica() -> None:
    plan = ask(count=4, concurrency=64, tensor=1, peak_factor=4.0, promise=Promise(tpot=0.02))
    assert plan.answers.peak is not None
    assert plan.answers.peak.workload.concurrency == 256
    assert plan.answers.without_one is not None
    assert plan.answers.without_one.deployment.parallel.replicas == 3


def test_prefixes_in_the_cache_bring_the_first_token_sooner() -> None:
    cold, warm = ask(count=1), ask(count=1, prefix_share=0.8)
    assert cold.chosen
    assert warm.chosen
    assert cold.chosen.ttft
    assert warm.chosen.ttft
    assert warm.chosen.ttft["p50"].value < cold.chosen.ttft["p50"].value


def test_quantised_weights_speed_up_decoding() -> None:
    half = ask(count=1, weight_dtype="fp8", concurrency=1)
    full = ask(count=1, concurrency=1)
    assert half.chosen
    assert full.chosen
    assert half.chosen.tpot
    assert full.chosen.tpot
    assert half.chosen.tpot["p50"].value < full.chosen.tpot["p50"].value


def test_price_becomes_cost() -> None:
    plan = ask(count=2, price=3.0)
    assert plan.chosen is not None
    assert plan.chosen.cost_per_million
    assert plan.chosen.output_rate
    cost = plan.chosen.cost_per_million
    assert cost.value == pytest.approx(2 * 3.0 / (3600 * plan.chosen.output_rate.value) * 1e6)
    assert cost.low < cost.value < cost.high


def test_engines_that_were_measured_have_narrower_bands() -> None:
    known = ask("Llama-3.1-70B", count=4, engine="vllm", weight_dtype="fp8")
    other = ask("Llama-3.1-70B", count=4, weight_dtype="fp8")
    assert known.chosen
    assert other.chosen
    assert known.chosen.tpot
    assert other.chosen.tpot
    one, two = known.chosen.tpot["p50"], other.chosen.tpot["p50"]
    assert one.origin.startswith("calibrated on ")
    assert two.origin == "uncalibrated"
    assert one.high / one.low < two.high / two.low


def test_the_same_question_has_the_same_answer() -> None:
    prompts, answers = parse_lengths("100-900", "--input"), parse_lengths("lognormal:200:0.7", "--output")
    workload = Workload(prompts, answers, 8)
    one, two = (json.dumps(plan_json(ask(count=1, workload=workload))) for _ in range(2))
    assert one == two


def test_ranking_puts_plans_before_reasons() -> None:
    plan = ask("Llama-3.1-70B", None, weight_dtype="fp8", devices=known_devices())
    found = [row.found is not None for row in plan.ranking]
    assert len(found) == len(known_devices())
    assert found == sorted(found, reverse=True)
    assert plan.chosen is not None
    assert plan.answers.best_device == plan.ranking[0].device.name
    assert all(row.reason for row in plan.ranking if row.found is None)


def test_devices_without_a_known_link_are_planned_alone_or_refused() -> None:
    alone = ask("Llama-3.1-70B", "Trainium2", count=4, weight_dtype="fp8")
    assert alone.chosen is not None
    assert alone.chosen.deployment.parallel.tensor == 1
    tied = ask("Llama-3.1-70B", "Trainium2", count=4, tensor=2)
    assert tied.chosen is not None
    assert tied.chosen.binding == "interconnect"


def test_moves_are_what_they_say() -> None:
    plan = ask("Llama-3.1-8B", "A100 80GB SXM", count=1, concurrency=1)
    by_name = {move.change: move for move in plan.moves}
    assert by_name["weights in fp8"].tpot < 1
    assert "no fp8 arithmetic" in by_name["weights in fp8"].note
    assert by_name["KV cache in fp8"].sequences == pytest.approx(2.0, rel=0.01)
    assert by_name["no overhead per layer and step"].tpot < 1


def test_every_predicted_figure_has_a_band_and_an_origin() -> None:
    def figures(node: Any) -> list[dict[str, Any]]:
        if isinstance(node, dict):
            own = [node] if {"value", "low", "high"} <= set(node) else []
            return own + [found for value in node.values() for found in figures(value)]
        if isinstance(node, list):
            return [found for value in node for found in figures(value)]
        return []

    found = figures(plan_json(ask(count=2, price=2.0)))
    assert len(found) > 10
    for figure in found:
        assert figure["low"] <= figure["value"] <= figure["high"]
        assert figure["unit"]
        assert figure["origin"]


def test_json_schema_is_stable() -> None:
    document = plan_json(ask(count=2, peak_factor=2.0, devices=(find_device("L40S"),)))
    assert document["schema"] == "rooftree-plan/1"
    assert set(document) >= {
        "verdict", "fits", "meets_promise", "binding", "model", "workload", "promise", "plan", "moves",
        "answers", "ranking",
    }  # fmt: skip
    assert set(document["plan"]) >= {
        "device", "devices", "tensor_parallel", "pipeline_parallel", "replicas", "weight_dtype", "kv_dtype",
        "step_model", "memory", "sequences_at_once", "batch", "ttft", "tpot", "throughput", "utilisation",
        "power", "cost", "decode_step", "prefill_step", "batch_curve",
    }  # fmt: skip
    assert set(document["answers"]) == {
        "fewest_devices", "largest_concurrency", "headroom_factor", "at_peak", "devices_for_peak",
        "without_one_replica", "best_device",
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["fits", "does not", "ranked"])
def test_the_page_needs_nothing_else(kind: str) -> None:
    plan = {
        "fits": lambda: ask(count=2, price=1.0, promise=Promise(1.0, 0.05), peak_factor=2.0),
        "does not": lambda: ask("Llama-3.1-70B", "L4", count=1),
        "ranked": lambda: ask("Llama-3.1-8B", None, devices=(find_device("L4"), find_device("L40S"))),
    }[kind]()
    page = plan_html(plan)
    assert page.startswith("<!DOCTYPE html>")
    assert not re.search(r"https?://|<script|<link|@import|url\(", page)
    assert plan.question.model.name in page
    assert "nan" not in page.lower().replace("nano", "")
    if kind == "fits":
        assert page.count("<svg") == 2


def test_text_of_users_is_escaped_in_the_page(tmp_path: Path) -> None:
    folder = tmp_path / "<script>alert(1)<"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "hidden_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "intermediate_size": 128,
                "vocab_size": 512,
                "max_position_embeddings": 4096,
                "rms_norm_eps": 1e-5,
                "tie_word_embeddings": False,
            }
        )
    )
    assert "<script" not in plan_html(ask(str(folder), count=1))


def test_headroom_of_arrivals_is_what_is_carried() -> None:
    asked = {"count": 2, "weight_dtype": PUBLISHED, "kv_dtype": "bf16", "promise": Promise(0.5, 0.03)}
    headroom = ask(rate=10.0, **asked).answers.headroom
    assert headroom is not None
    assert headroom > 1
    assert chosen(ask(rate=10.0 * headroom, **asked)).meets
    assert not chosen(ask(rate=11.0 * headroom, **asked)).meets


def test_windows_are_counted_both_ways_and_both_named() -> None:
    """A window of 128 on 18 of 36 layers with 8 KV heads of 64: 2,048 bytes per layer and token."""
    long = ("--device", "H100 SXM", "--count", "2", "--tp", "1", "--input", "8064", "--output", "128")
    kept, freed = 36 * 2048 * 8192 / 2**20, 18 * 2048 * (8192 + 128) / 2**20
    for more, counted in (
        ((), "kept, as Rooftree does"),
        (("--windowed-kv",), "freed, as --windowed-kv says"),
    ):
        text = " ".join(invoke("gpt-oss-120b", *long, *more).output.split())
        assert f"{kept:,.1f} MiB per device with every token kept" in text
        assert f"{freed:,.1f} MiB with those freed that have left a window" in text
        assert f"(counted: {counted})" in text
    assert "left a window" not in invoke("Llama-3.1-8B", *long).output


def test_scaled_loads() -> None:
    assert scaled(Workload(fixed(1), fixed(1), 10), 2.5).concurrency == 25
    assert scaled(Workload(fixed(1), fixed(1), rate=2.0), 3).rate == 6.0


def invoke(*args: str) -> Any:
    return CliRunner().invoke(command, list(args))


def test_the_command_prints_and_writes(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    options = ("--device", "H100 SXM", "--count", "1", "--concurrency", "8", "--ttft", "1", "--tpot", "0.05")
    text = invoke("Llama-3.1-8B", *options)
    assert text.exit_code == 0, text.output
    assert "keeps the promise" in text.output
    written = invoke("Llama-3.1-8B", *options, "--html", str(page))
    assert written.exit_code == 0, written.output
    assert page.read_text().startswith("<!DOCTYPE html>")
    as_json = invoke("Llama-3.1-8B", *options, "--json")
    assert json.loads(as_json.output)["meets_promise"] is True


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("nobody-7b",), "no published model"),
        (("Llama-3.1-8B", "--device", "warp9"), "not known"),
        (("Llama-3.1-8B", "--weight-dtype", "fp3"), "fp3"),
        (("Llama-3.1-8B", "--kv-dtype", "fp3"), "fp3"),
        (("Llama-3.1-8B", "--input", "5-1"), "--input"),
        (("Llama-3.1-8B", "--output", "lognormal:1"), "--output"),
        (("Llama-3.1-8B", "--rate", "1", "--concurrency", "1"), "two kinds of load"),
        (("Llama-3.1-8B", "--rate", "-1"), "above 0"),
        (("Llama-3.1-8B", "--concurrency", "0"), "at least 1"),
        (("Llama-3.1-8B", "--prefix-share", "1"), "prefix share"),
        (("Llama-3.1-8B", "--ttft", "0"), "--ttft"),
        (("Llama-3.1-8B", "--percentile", "95"), "percentile"),
        (("Llama-3.1-8B", "--peak-factor", "0.5"), "--peak-factor"),
        (("Llama-3.1-8B", "--count", "0"), "--count"),
        (("Llama-3.1-8B", "--device", "H100 SXM", "--tp", "3"), "--tp 3"),
        (
            ("Llama-3.1-8B", "--device", "L4", "--html", "/no/such/folder/x.html"),
            "--html /no/such/folder/x.html: No",
        ),
        (("validate", "--points", "/no/such.csv"), "/no/such.csv: No such file"),
        (("calibrate", "--steps", "/no/s", "--model", "x", "--device", "L4"), "/no/s: No such file"),
        (("calibrate",), "--steps"),
        (("calibrate", "--steps", "x.json"), "--model"),
    ],
)
def test_bad_options_are_refused_with_their_name(args: tuple[str, ...], message: str) -> None:
    result = invoke(*args)
    assert result.exit_code != 0
    assert isinstance(result.exception, RooftreeError), result.output
    assert message in str(result.exception)


def test_help_names_the_subcommands() -> None:
    output = invoke("--help").output
    assert "validate" in output
    assert "calibrate" in output
    for arguments in (("--help",), ("Llama-3.1-8B", "--help"), ()):
        assert "--peak-factor" in invoke(*arguments).output


def test_usage_does_not_show_the_name_of_the_command_that_plans() -> None:
    """Users write ``rooftree plan MODEL``."""
    for arguments in (("--help",), ("Llama-3.1-8B", "--help"), ("--device", "L4")):
        output = invoke(*arguments).output
        assert "[OPTIONS] MODEL" in output
        assert " model [OPTIONS]" not in output
        assert " model --help" not in output


def test_questions_are_checked() -> None:
    with pytest.raises(ConfigError, match="either a concurrency or a rate"):
        Workload(fixed(1), fixed(1), 1, 1.0)
