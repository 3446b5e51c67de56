"""What the native sampler may answer: the reference's choice, and its neighbours across a rounding error."""

from __future__ import annotations

from itertools import product

import msgspec
import numpy as np

from rooftree.kernels.ops import Floats
from rooftree.kernels.reference_sampler import (
    Sample,
    candidate_probabilities,
    edit_logits,
    philox_uniform,
    sample,
)
from rooftree.scheduler.output import ScheduledRequest

_NUDGE = 2e-6


def reference(table: Floats, request: ScheduledRequest) -> Sample | None:
    """The reference sampler on the row that the request's last token selects."""
    n = request.num_prompt_tokens
    return sample(
        table[request.token_ids[-1]],
        request.params,
        prompt=request.token_ids[:n],
        output=request.token_ids[n:],
        seed=request.seed,
        banned=request.banned_token_ids,
    )


def edited(table: Floats, request: ScheduledRequest) -> Floats:
    """The row as bias, bans and penalties leave it."""
    n = request.num_prompt_tokens
    row = table[request.token_ids[-1]]
    return edit_logits(
        row, request.params, request.token_ids[:n], request.token_ids[n:], request.banned_token_ids
    )


def tokens_within_rounding(table: Floats, request: ScheduledRequest) -> set[int]:
    """Tokens that the reference chooses if logits, random number, top-p or min-p move by a rounding error."""
    x, params = edited(table, request), request.params
    if params.temperature == 0:
        return set(np.flatnonzero(x >= x.max() - 1e-5).tolist())
    u = philox_uniform(request.seed, len(request.token_ids) - request.num_prompt_tokens)
    filtered = 0 < params.top_k < len(x) or params.top_p < 1 or params.min_p > 0
    tokens = set()
    for top_p, min_p, shift in product(*3 * [(-_NUDGE, 0.0, _NUDGE)]):
        nudged = msgspec.structs.replace(
            params,
            top_p=params.top_p * (1 + top_p) if params.top_p < 1 else 1.0,
            min_p=params.min_p * (1 + min_p) if params.min_p < 1 else 1.0,
        )
        ids, weights = candidate_probabilities(x, nudged)
        if not filtered:
            ids, weights = np.sort(ids), weights[np.argsort(ids)]
        place = int(np.searchsorted(np.cumsum(weights), (u + shift) * weights.sum(), side="right"))
        tokens.add(int(ids[min(place, len(ids) - 1)]))
    return tokens
