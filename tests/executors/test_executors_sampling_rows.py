"""What the native sampler is told, field by field, and that every legal request can be told."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from rooftree import _native
from rooftree.engine.executors.sampling_rows import RESULT_DTYPE, SamplingRows
from rooftree.sampling.params import SamplingParams
from rooftree.sampling.validate import validate_sampling_params
from rooftree.scheduler.output import ScheduledRequest

# native/sampler.h, SamplingRow, in C's own alignment.
ROW = np.dtype(
    [
        *(
            (name, np.float32)
            for name in ("temperature", "top_p", "min_p", "presence", "frequency", "repetition")
        ),
        ("top_k", np.int32),
        ("num_logprobs", np.int32),
        ("seed", np.uint64),
        *((name, np.int32) for name in ("counter", "num_prompt", "num_tokens", "bias_begin", "bias_end")),
        *((name, np.int32) for name in ("ban_begin", "ban_end", "padding")),
    ],
    align=True,
)


def request(
    params: SamplingParams, *, tokens: int = 3, prompt: int = 1, seed: int = 0, banned: tuple[int, ...] = ()
) -> ScheduledRequest:
    return ScheduledRequest("r", list(range(tokens)), prompt, 0, tokens, [0], True, params, seed, banned)


def packed(*requests: ScheduledRequest, capacity: int = 8) -> tuple[np.ndarray, SamplingRows]:
    rows = SamplingRows(capacity)
    rows.pack(list(requests))
    return rows.rows.view(ROW)[: len(requests)], rows


def test_sizes_are_the_native_ones():
    assert ROW.itemsize == _native.SAMPLING_ROW_BYTES
    assert RESULT_DTYPE.itemsize == _native.SAMPLE_RESULT_BYTES
    assert RESULT_DTYPE["top_ids"].shape == (_native.MAX_TOP_LOGPROBS,)


def test_every_field_arrives():
    params = SamplingParams(
        temperature=0.5,
        top_p=0.25,
        min_p=0.125,
        presence_penalty=-1.5,
        frequency_penalty=1.25,
        repetition_penalty=1.75,
        top_k=17,
        logprobs=4,
    )
    (row,), _ = packed(request(params, tokens=9, prompt=4, seed=2**63 + 5))
    assert row.tolist()[:8] == (0.5, 0.25, 0.125, -1.5, 1.25, 1.75, 17, 4)
    assert row["seed"] == 2**63 + 5
    assert (row["counter"], row["num_prompt"], row["num_tokens"]) == (5, 4, 9)


def test_defaults_are_off():
    (row,), rows = packed(request(SamplingParams()))
    assert row.tolist()[:8] == (1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0, -1)
    assert row["bias_begin"] == row["bias_end"]
    assert row["ban_begin"] == row["ban_end"]
    assert len(rows.bias_ids) > 0  # the native side takes an address


@pytest.mark.parametrize("seed", [-1, -(2**63), 2**64 - 1, 0])
def test_seeds_wrap_to_64_bits(seed: int):
    (row,), _ = packed(request(SamplingParams(), seed=seed))
    assert int(row["seed"]) == seed % 2**64


def test_biases_and_bans_of_several_requests_lie_one_after_another():
    biases: list[dict[int, float]] = [{5: 1.5, 2: -3.0}, {}, {7: 100.0}]
    bans = [(1,), (4, 9), ()]
    requests = [
        request(SamplingParams(logit_bias=b), banned=ban) for b, ban in zip(biases, bans, strict=True)
    ]
    got, rows = packed(*requests)
    for row, bias, ban in zip(got, biases, bans, strict=True):
        begin, end = row["bias_begin"], row["bias_end"]
        ids, values = rows.bias_ids[begin:end].tolist(), rows.bias_values[begin:end].tolist()
        assert dict(zip(ids, values, strict=True)) == bias
        assert tuple(rows.banned_ids[row["ban_begin"] : row["ban_end"]].tolist()) == ban


def test_a_step_leaves_nothing_for_the_next():
    rows = SamplingRows(2)
    rows.pack([request(SamplingParams(logit_bias={1: 2.0}), banned=(3,))] * 2)
    rows.pack([request(SamplingParams())])
    (row,) = rows.rows.view(ROW)[:1]
    assert row["bias_begin"] == row["bias_end"]
    assert row["ban_begin"] == row["ban_end"]
    rows.pack([])


TOO_LARGE = pytest.mark.xfail(strict=True, reason="legal numbers that neither float32 nor int32 holds")


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 5e-324},
        {"temperature": 3.4e38},
        pytest.param({"temperature": 3.5e38}, marks=TOO_LARGE),
        pytest.param({"temperature": sys.float_info.max}, marks=TOO_LARGE),
        {"top_k": 2**31 - 1},
        pytest.param({"top_k": 2**31}, marks=TOO_LARGE),
        pytest.param({"top_k": 10**30}, marks=TOO_LARGE),
        {"min_p": 5e-324},
        {"top_p": 5e-324},
        {"repetition_penalty": 0.01},
        {"logit_bias": {0: 1e-300}},
        {"seed": -(2**63)},
    ],
    ids=str,
)
def test_whatever_validation_accepts_can_be_packed(options: dict[str, Any]):
    """A number that fails here would end the step, and with it every request in it."""
    params = SamplingParams(**options)
    validate_sampling_params(params, 512)
    (row,), _ = packed(request(params, seed=params.seed or 0))
    assert np.isfinite([row[name] for name in ("temperature", "top_p", "min_p", "repetition")]).all()
