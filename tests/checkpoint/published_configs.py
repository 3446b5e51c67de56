"""Published configurations, cut to the fields that decide what is stored, and the totals that they must give.

Totals are those of the published tensors: of the model classes in ``transformers`` (built without memory,
tied heads once) and, where a router keeps a bias per expert in its file, those numbers too.
``kv_bytes_per_token`` is in bf16.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, NamedTuple


class Published(NamedTuple):
    """One model and its totals."""

    config: dict[str, Any]
    parameters: int
    active: int
    kv_bytes_per_token: int


PUBLISHED = {
    name: Published(**entry)
    for name, entry in json.loads(Path(__file__).with_suffix(".json").read_text()).items()
}


def config(name: str, **over: Any) -> dict[str, Any]:
    """A copy of one config with fields replaced; ``...`` takes a field away."""
    merged = copy.deepcopy(PUBLISHED[name].config) | over
    return {key: value for key, value in merged.items() if value is not ...}
