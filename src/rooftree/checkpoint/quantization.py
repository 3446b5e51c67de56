"""Names of what weights can be quantised to while loading: the values of ``--quantization``."""

from __future__ import annotations

from typing import Literal

Quantization = Literal["bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0"]
