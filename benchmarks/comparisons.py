"""What is compared with llama.cpp: which files, which cases, and the ratio that is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from side_by_side import Case, decode_case, prefill_case

_PREFILL = 0
"""Key of a prefill among targets; the others are batch sizes."""


@dataclass(frozen=True)
class Comparison:
    """A file of ours and one of theirs (see ``model_files.FILE_HELP``) and the cases for both.

    Attributes:
        targets: least ratio ours / theirs, by batch size of a decode, and of a prefill.
    """

    name: str
    ours: str
    theirs: str
    prompts: tuple[int, ...] = (512,)
    contexts: tuple[int, ...] = (128,)
    batches: tuple[int, ...] = (1, 8, 16, 32)
    targets: Mapping[int, float] = field(default_factory=dict)

    def cases(self, steps: int, limit: int) -> list[Case]:
        """Prefills, then decodes of each batch size at each context; no sequence longer than ``limit``."""
        prefills = [prefill_case(tokens, limit) for tokens in self.prompts]
        return prefills + [
            decode_case(batch, context, steps, limit) for context in self.contexts for batch in self.batches
        ]

    def target(self, case: Case) -> float | None:
        """The ratio asked for in a case, if one is."""
        return self.targets.get(case.batch if case.steps else _PREFILL)


def _everywhere(ratio: float) -> dict[int, float]:
    return dict.fromkeys((_PREFILL, 1, 8, 16, 32), ratio)


_SAME = {_PREFILL: 3.0, 1: 1.8, 8: 2.8, 16: 3.0, 32: 3.2}
_BEST = {_PREFILL: 1.6, 1: 1.4, 8: 1.7, 16: 1.7, 32: 1.9}
_LONG = {_PREFILL: 1.5, 1: 1.2, 8: 1.2}

TABLE = {
    each.name: each
    for each in (
        Comparison("same-file", "smollm2", "smollm2", targets=_SAME),
        Comparison("best-file", "smollm2", "Q4_0", targets=_BEST),
        Comparison("best-file-both", "Q4_0", "Q4_0", targets=_BEST),
        Comparison("q8_0", "Q8_0", "Q8_0", targets=_everywhere(1.5)),
        Comparison("q4_k_m", "Q4_K_M", "Q4_K_M", targets=_everywhere(1.5)),
        Comparison("llama-1b", "llama-1b", "llama-1b", targets=_everywhere(1.3)),
        Comparison("long", "Q4_0", "Q4_0", (8192,), (4096, 8192), (1, 8), targets=_LONG),
    )
}
