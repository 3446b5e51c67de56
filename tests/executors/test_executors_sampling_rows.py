"""What the native sampler is told, field by field, and that every legal request can be told."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from rigs.tokenizer import tiny_tokenizer
from rooftree import _native
from rooftree.checkpoint.base import TextAssets
from rooftree.engine.executors.sampling_rows import RESULT_DTYPE, SamplingRows
from rooftree.engine.input_processor import InputProcessor
from rooftree.errors import RequestError
from rooftree.sampling.params import SamplingParams
from rooftree.sampling.validate import validate_sampling_params
from rooftree.scheduler.output import ScheduledRequest
from rooftree.text.tokenizer import Tokenizer

FLOAT32_MAX = 3.4028234663852886e38

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


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 5e-324},
        {"temperature": FLOAT32_MAX},
        {"top_k": 2**31 - 1},
        {"top_k": 2**31},
        {"top_k": 10**30},
        {"min_p": 5e-324},
        {"top_p": 5e-324},
        {"repetition_penalty": 0.01},
        {"logit_bias": {0: 1e-300}},
        {"seed": -(2**63)},
    ],
    ids=str,
)
def test_whatever_passes_the_door_can_be_packed(options: dict[str, Any]):
    """A number that fails here would end the step, and with it every request in it."""
    tokenizer = Tokenizer.from_assets(TextAssets(tokenizer_json=tiny_tokenizer().hf_json()))
    door = InputProcessor(tokenizer, vocab_size=512, eos_token_ids=(), max_model_len=64)
    (choice,) = door.process("r", [1], SamplingParams(**options)).choices
    (row,), _ = packed(request(choice.params, seed=choice.seed))
    assert np.isfinite([row[name] for name in ("temperature", "top_p", "min_p", "repetition")]).all()


@pytest.mark.parametrize("temperature", [3.41e38, sys.float_info.max])
def test_what_could_not_be_packed_is_refused_at_the_door(temperature: float):
    with pytest.raises(RequestError, match=r"from 0 \(greedy\) to 3.4e38"):
        validate_sampling_params(SamplingParams(temperature=temperature), 512)
