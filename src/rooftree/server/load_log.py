"""A line every ten seconds under load, none at rest: how much is done, what binds, how far that limit is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import monotonic

from rooftree.engine.messages import SchedulerStats, StepTotals
from rooftree.engine.stats import IterationStats, StatLogger

logger = logging.getLogger("rooftree.server")

INTERVAL_SECONDS = 10.0
_LEAST_SHARE = 0.05


class StatReaders:
    """One ``StatLogger`` for several."""

    def __init__(self, readers: Sequence[StatLogger]) -> None:
        self._readers = tuple(readers)

    def record(self, stats: IterationStats) -> None:
        """Pass it on to each."""
        for reader in self._readers:
            reader.record(stats)


class LoadLog:
    """Reads the engine's totals and writes the line. A ``StatLogger``."""

    def __init__(
        self, clock: Callable[[], float] = monotonic, write: Callable[[str], None] = logger.info
    ) -> None:
        self._clock = clock
        self._write = write
        self._base = StepTotals()
        self._due: float | None = None

    def record(self, stats: IterationStats) -> None:
        """Take note; a line is written where one is due."""
        scheduler = stats.scheduler
        if scheduler is None:
            return
        now = self._clock()
        if self._due is None:
            if scheduler.steps.num_steps > self._base.num_steps:
                self._due = now + INTERVAL_SECONDS
        elif now >= self._due:
            added = scheduler.steps.since(self._base)
            self._base = scheduler.steps
            if added.num_steps:
                self._due = now + INTERVAL_SECONDS
                self._write(load_line(scheduler, added))
            else:
                self._due = None


def load_line(state: SchedulerStats, added: StepTotals) -> str:
    """The line: ``state`` now, and what steps ``added`` since the last one. Rates are by busy second."""
    busy, steps = added.busy_seconds or 1.0, added.num_steps
    prompt, generated = added.num_prefill_tokens / busy, added.num_outputs / busy
    kv = state.num_owned_blocks / max(1, state.num_total_blocks)
    parts = [
        f"batch {added.num_requests / steps:.1f} ({state.num_running} running, {state.num_waiting} waiting)",
        f"KV {kv:.1%}",
        f"{prompt:.0f} prompt + {generated:.0f} generated tokens/s over {busy:.1f} s",
        f"bound by {_shares(added)}",
    ]
    if added.predicted_seconds:
        parts += [
            f"bandwidth {_of(added.bandwidth_fraction, added.num_bytes, added.bandwidth_seconds, 'B/s')}",
            f"arithmetic {_of(added.arithmetic_fraction, added.flop, added.arithmetic_seconds, 'op/s')}",
        ]
    step = f"step {1e3 * added.seconds / steps:.2f} ms"
    if added.predicted_seconds:
        step += f" ({1e3 * added.predicted_seconds / steps:.2f} ms predicted)"
    return "; ".join([*parts, step])


def _shares(added: StepTotals) -> str:
    """Limits with their shares of the busy time, the largest first; small ones are left out."""
    busy = added.busy_seconds or 1.0
    ranked = sorted(added.by_limit().items(), key=lambda item: -item[1])
    shown = [f"{name} {seconds / busy:.0%}" for name, seconds in ranked if seconds >= _LEAST_SHARE * busy]
    return ", ".join(shown).replace("_", " ")


def _of(fraction: float, amount: float, seconds: float, unit: str) -> str:
    rate = amount / seconds / 1e9 if seconds else 0.0
    return f"{fraction:.0%} of {rate:.0f} G{unit}"
