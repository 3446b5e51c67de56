"""What an executor is to the engine: it owns weights and KV memory, and computes steps."""

from __future__ import annotations

from typing import Protocol

from rooftree.scheduler.output import ModelRunnerOutput, SchedulerOutput


class Executor(Protocol):
    """Computes steps for one model on one machine.

    Life: construct (weights packed), ``allocate_kv_cache`` once, ``execute`` any number of times, ``close``.

    Attributes:
        weight_bytes: bytes of the weights as packed in memory.
        activation_bytes: bytes of the working memory of the largest step, logits included.
        kv_bytes_per_block: bytes of K and V of one block over all layers.
        last_native_seconds: time of the last ``execute`` spent outside Python.
        isa: instruction set of its native kernels; None: it has none, so the cost model is not of it.
        threads: that its kernels run on.
    """

    weight_bytes: int
    activation_bytes: int
    kv_bytes_per_block: int
    last_native_seconds: float
    isa: str | None
    threads: int

    def allocate_kv_cache(self, num_blocks: int) -> None:
        """Take memory for ``num_blocks`` blocks. Raises ConfigError where the system refuses it."""

    def read_rate(self, num_bytes: int, tries: int) -> float:
        """Bytes per second at which its threads can read its weights, over and over as steps do: about
        ``num_bytes`` of them, best of the tries. Asked only where ``isa`` is set."""

    @property
    def progress(self) -> int:
        """A number that changes while ``execute`` gets on; for any thread."""

    def execute(self, output: SchedulerOutput) -> ModelRunnerOutput:
        """Compute one step: write K and V of every scheduled token, choose a token where ``samples``."""

    def close(self) -> None:
        """Give all memory and threads back; idempotent."""
