"""The engine's totals as metrics of the last seconds, and as a line of the log."""

from __future__ import annotations

from typing import Any

from rooftree.engine.messages import SchedulerStats, StepTotals
from rooftree.engine.stats import IterationStats
from rooftree.server.exposition import Exposition
from rooftree.server.load_log import LoadLog, StatReaders, load_line
from rooftree.server.metrics import Metrics
from rooftree.server.recent import Recent


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def totals(steps: int, **sums: Any) -> StepTotals:
    """So many steps of 10 ms, 4 of them predicted, half of the bandwidth used."""
    return StepTotals(
        num_steps=steps,
        num_requests=3 * steps,
        num_tokens=7 * steps,
        num_prefill_tokens=5 * steps,
        num_outputs=2 * steps,
        seconds=0.01 * steps,
        native_seconds=0.008 * steps,
        predicted_seconds=0.004 * steps,
        num_bytes=1e8 * steps,
        flop=1e9 * steps,
        bandwidth_seconds=0.005 * steps,
        arithmetic_seconds=0.001 * steps,
        **({"by_bandwidth": 0.008 * steps, "by_host": 0.002 * steps} | sums),
    )


def stats(steps: StepTotals, **state: int) -> IterationStats:
    return IterationStats(scheduler=SchedulerStats(steps=steps, **state))


def test_only_the_last_seconds_count() -> None:
    clock = Clock()
    recent = Recent(clock)
    assert recent.totals() == StepTotals()
    steps = 0
    for tick in range(4000):
        clock.now = 1000.0 + tick / 100
        steps += 1 if tick < 2000 else 3
        recent.add(totals(steps))
    assert 3000 <= recent.totals().num_steps <= 3300
    assert recent.totals().batch_size == 3
    for tick in range(12):
        clock.now += 1
        recent.add(totals(steps))
        assert (recent.totals().num_steps == 0) == (tick >= 10)


def test_looking_changes_nothing() -> None:
    clock = Clock()
    recent = Recent(clock)
    clock.now += 3
    recent.add(totals(5))
    assert recent.totals() == recent.totals() == totals(5)


def test_metrics_of_steps() -> None:
    metrics = Metrics("m")
    metrics.record(stats(totals(100)))
    text = Exposition(metrics).text().decode()
    labels = 'engine="0",model_name="m"'
    for line in (
        f"rooftree:step_bandwidth_fraction{{{labels}}} 0.5",
        f"rooftree:step_arithmetic_fraction{{{labels}}} 0.1",
        f"rooftree:batch_size{{{labels}}} 3.0",
        f"rooftree:predicted_step_seconds{{{labels}}} 0.004",
        'rooftree:bound_total{engine="0",limit="bandwidth",model_name="m"} 0.8',
        'rooftree:bound_total{engine="0",limit="kv_capacity",model_name="m"} 0.0',
        f"rooftree:engine_steps_total{{{labels}}} 100.0",
        f"rooftree:engine_step_bytes_total{{{labels}}} 1e+10",
    ):
        assert line in text
    for limit in ("arithmetic", "queue", "host"):
        assert f'limit="{limit}"' in text
    assert "vllm:bound" not in text


def test_a_line_every_ten_seconds_under_load_and_none_at_rest() -> None:
    clock, lines = Clock(), []
    log = LoadLog(clock, lines.append)
    times = []
    steps = 0
    for second in range(120):
        clock.now = 1000.0 + second
        busy = 5 <= second < 38 or second == 90
        steps += 100 if busy else 0
        before = len(lines)
        log.record(stats(totals(steps)))
        log.record(IterationStats())
        times += [second] * (len(lines) - before)
    assert times == [15, 25, 35, 45, 100]


def test_each_line_tells_of_its_own_seconds() -> None:
    clock, lines = Clock(), []
    log = LoadLog(clock, lines.append)
    log.record(stats(totals(1)))
    clock.now += 10
    log.record(stats(totals(900), num_running=3))
    clock.now += 10
    log.record(stats(totals(1000, by_queue=1.0), num_running=4))
    first, second = lines
    assert "over 9.0 s" in first
    assert "over 2.0 s" in second
    assert "queue 50%" in second


def test_the_line_in_full() -> None:
    state = SchedulerStats(num_running=4, num_waiting=2, num_owned_blocks=25, num_total_blocks=100)
    assert load_line(state, totals(900, by_kv_capacity=1.8, by_queue=0.01)) == (
        "batch 3.0 (4 running, 2 waiting); KV 25.0%; 416 prompt + 167 generated tokens/s over 10.8 s; "
        "bound by bandwidth 67%, kv capacity 17%, host 17%; bandwidth 50% of 20 GB/s; "
        "arithmetic 10% of 1000 Gop/s; step 10.00 ms (4.00 ms predicted)"
    )


def test_without_a_prediction_the_line_claims_none() -> None:
    added = StepTotals(num_steps=2, num_requests=2, num_outputs=2, seconds=0.2, by_host=0.2)
    assert load_line(SchedulerStats(), added) == (
        "batch 1.0 (0 running, 0 waiting); KV 0.0%; 0 prompt + 10 generated tokens/s over 0.2 s; "
        "bound by host 100%; step 100.00 ms"
    )


def test_every_reader_is_told() -> None:
    first, second = Metrics("a"), Metrics("b")
    StatReaders((first, second)).record(stats(totals(2)))
    assert first.scheduler.steps == second.scheduler.steps == totals(2)


def test_no_steps_are_no_fraction() -> None:
    nothing = StepTotals()
    assert (nothing.bandwidth_fraction, nothing.arithmetic_fraction, nothing.busy_seconds) == (0, 0, 0)
    assert (nothing.batch_size, nothing.predicted_step_seconds) == (0, 0)
    assert load_line(SchedulerStats(), StepTotals(num_steps=1))
