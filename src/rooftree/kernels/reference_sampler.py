"""The sampler in numpy: what the native one is held against, step for step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rooftree.kernels.ops import Floats
from rooftree.sampling.params import SamplingParams

_GREEDY_BELOW = 1e-5
_MASK = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Sample:
    """The chosen token; where asked, its logprob and rank and the most likely tokens, best first."""

    token: int
    logprob: float = 0.0
    rank: int = 0
    top_ids: tuple[int, ...] = ()
    top_logprobs: tuple[float, ...] = ()


def philox_uniform(seed: int, counter: int) -> float:
    """Uniform in [0, 1): 53 bits of Philox 4x32-10 (Salmon et al., 2011), block ``counter``, key ``seed``."""
    c = [counter & _MASK, 0, 0, 0]
    k0, k1 = seed & _MASK, (seed >> 32) & _MASK
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k0, b & _MASK, (a >> 32) ^ c[3] ^ k1, a & _MASK]
        k0, k1 = (k0 + 0x9E3779B9) & _MASK, (k1 + 0xBB67AE85) & _MASK
    return float(((c[0] << 32) | c[1]) >> 11) * 2.0**-53


def edit_logits(
    logits: Floats, params: SamplingParams, prompt: list[int], output: list[int], banned: tuple[int, ...]
) -> Floats:
    """Bias, bans and penalties, in ``SamplingParams``' order; returns a new array (vocab,)."""
    x = logits.astype(np.float32)
    for token, bias in params.logit_bias.items():
        x[token] += np.float32(bias)
    x[list(banned)] = -np.inf
    if not params.has_penalties:
        return x
    seen = np.unique(np.asarray(prompt + output, np.int64))
    counts = np.bincount(np.asarray(output, np.int64), minlength=len(x)).astype(np.float32)
    seen = seen[np.isfinite(x[seen])]  # a ban stays a ban
    factor = np.float32(params.repetition_penalty)
    with np.errstate(over="ignore"):
        penalised = np.where(x[seen] > 0, x[seen] / factor, x[seen] * factor)
    penalised -= np.float32(params.frequency_penalty) * counts[seen]
    penalised -= np.float32(params.presence_penalty) * (counts[seen] > 0)
    x[seen] = np.clip(penalised, np.finfo(np.float32).min, np.finfo(np.float32).max)
    return x


def candidate_probabilities(
    x: Floats, params: SamplingParams
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Tokens that may be chosen, best first, and their weights: top-k, then top-p of those, then min-p."""
    order = np.lexsort((np.arange(len(x)), -x))
    weights = np.exp((x[order] - x.max()) / np.float32(params.temperature)).astype(np.float64)
    if 0 < params.top_k < len(x):
        order, weights = order[: params.top_k], weights[: params.top_k]
    keep = (weights > 0) & (weights >= np.float32(params.min_p))
    if params.top_p < 1:
        before = np.concatenate([[0.0], np.cumsum(weights)[:-1]])
        keep &= before < np.float32(params.top_p) * weights.sum()
    keep[0] = True
    return order[keep], weights[keep]


def sample(
    logits: Floats,
    params: SamplingParams,
    *,
    prompt: list[int],
    output: list[int],
    seed: int,
    banned: tuple[int, ...] = (),
) -> Sample | None:
    """One token from logits (vocab,); None where they are not finite."""
    if not np.isfinite(logits).all():
        return None
    x = edit_logits(logits, params, prompt, output, banned)
    if not np.isfinite(x.max()):
        return None
    if params.temperature < _GREEDY_BELOW or params.top_k == 1 or params.top_p <= 0:
        token = int(np.argmax(x))
    else:
        u = philox_uniform(seed, len(output))
        ids, weights = candidate_probabilities(x, params)
        if not (0 < params.top_k < len(x) or params.top_p < 1 or params.min_p > 0):
            by_id = np.argsort(ids)
            ids, weights = ids[by_id], weights[by_id]
        place = int(np.searchsorted(np.cumsum(weights), u * weights.sum(), side="right"))
        token = int(ids[min(place, len(ids) - 1)])
    return Sample(token) if params.logprobs is None else _with_logprobs(token, logits, params.logprobs)


def _with_logprobs(token: int, logits: Floats, n: int) -> Sample:
    shifted = logits.astype(np.float64) - logits.max()
    logprobs = shifted - np.log(np.exp(shifted).sum())
    top = np.lexsort((np.arange(len(logits)), -logits))[:n]
    rank = 1 + int((logits > logits[token]).sum())
    return Sample(token, float(logprobs[token]), rank, tuple(top.tolist()), tuple(logprobs[top].tolist()))
