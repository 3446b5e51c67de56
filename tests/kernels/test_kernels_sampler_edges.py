"""Options and logits at the edge of what is legal: a real token, or an error of that request alone."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from native_rig import GREEDY, ISAS, RowProgram, asked
from sampler_rig import reference

from rooftree.kernels.ops import Floats
from rooftree.sampling.params import SamplingParams
from rooftree.sampling.validate import validate_sampling_params
from rooftree.scheduler.output import ScheduledRequest

VOCAB = 100
CONTROL = asked(SamplingParams(temperature=0.8, seed=1, logprobs=4), [0], seed=5, request_id="control")


def make_table() -> Floats:
    return np.random.default_rng(2).normal(0, 3, (4, VOCAB)).astype(np.float32)


TABLE = make_table()


def check(isa: str, requests: list[ScheduledRequest], table: Floats = TABLE) -> list[int | None]:
    """Sample these beside a control request, whose answer must be the one it has alone."""
    program = RowProgram(table, isa=isa)
    (control,) = program.sample([CONTROL])
    first, *samples, last = program.sample([CONTROL, *requests, CONTROL])
    assert control is not None
    assert first == control == last
    for request, got in zip(requests, samples, strict=True):
        validate_sampling_params(request.params, VOCAB)
        if got is not None and request.params.logprobs is not None:
            assert np.isfinite([got.logprob, *got.top_logprobs]).all()
            assert got.logprob <= 0
            assert got.rank >= 1
    return [None if got is None else got.token for got in samples]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("temperature", [0.0, 1e-5, 1e-30, 1e-38, 5e-324])
def test_tiny_temperatures_are_greedy(isa: str, temperature: float):
    requests = [
        asked(SamplingParams(temperature=temperature, logprobs=2, **filters), [row], seed=row)
        for row in range(4)
        for filters in ({}, {"top_k": 7}, {"top_p": 0.5}, {"min_p": 0.1}, {"repetition_penalty": 1.0})
    ]
    assert check(isa, requests) == [int(TABLE[request.token_ids[-1]].argmax()) for request in requests]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("options", [{"top_k": 1}, {"min_p": 1.0}, {"top_p": 0.0}, {"top_p": 1e-9}])
@pytest.mark.parametrize("temperature", [1e-5, 1.0, 100.0])
def test_the_narrowest_filters_are_greedy(isa: str, options: dict[str, Any], temperature: float):
    params = SamplingParams(temperature=temperature, logprobs=0, **options)
    requests = [asked(params, [row], seed=seed) for row in range(4) for seed in range(8)]
    assert check(isa, requests) == [int(TABLE[request.token_ids[-1]].argmax()) for request in requests]


@pytest.mark.parametrize("isa", ISAS)
def test_filters_that_keep_all_are_off(isa: str):
    plain = [asked(SamplingParams(), [row], seed=seed) for row in range(4) for seed in range(8)]
    expected = check(isa, plain)
    for options in (
        {"top_k": -1},
        {"top_k": 0},
        {"top_k": VOCAB},
        {"top_k": VOCAB + 1},
        {"top_k": 2**31 - 1},
    ):
        params = SamplingParams(top_p=1.0, min_p=0.0, **options)
        requests = [asked(params, r.token_ids, seed=r.seed) for r in plain]
        assert check(isa, requests) == expected
    assert len(set(expected)) > 8


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("temperature", [0.0, 1e-5, 1.0, 1e30, 3.4e38])
def test_all_filters_together_leave_a_token(isa: str, temperature: float):
    """Every corner of the options at once; what the reference answers, the kernel answers."""
    corners = product(
        [-1, 1, VOCAB, VOCAB + 1], [0.0, 1e-9, 1.0], [0.0, 1.0], [-2.0, 2.0], [0.01, 1.0, 100.0]
    )
    requests = [
        asked(
            SamplingParams(
                temperature=temperature,
                top_k=top_k,
                top_p=top_p,
                min_p=min_p,
                presence_penalty=penalty,
                frequency_penalty=penalty,
                repetition_penalty=repetition,
                logprobs=1,
            ),
            [5, 5, 9, i % 4],
            prompt=[9, 30],
            seed=i,
        )
        for i, (top_k, top_p, min_p, penalty, repetition) in enumerate(corners)
    ]
    expected = [reference(TABLE, request) for request in requests]
    assert None not in expected
    for begin in range(0, len(requests), 120):
        got = check(isa, requests[begin : begin + 120])
        assert got == [e.token for e in expected[begin : begin + 120] if e]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf], ids=["nan", "inf", "-inf"])
@pytest.mark.parametrize("vocab", [7, 16, 17, 100, 1500])
def test_logits_that_are_no_numbers_fail_their_request_alone(isa: str, bad: float, vocab: int):
    places = sorted({0, 5, vocab // 2, vocab - 1})
    table = np.random.default_rng(4).normal(0, 3, (5, vocab)).astype(np.float32)
    for row, place in enumerate(places, start=1):
        table[row, place] = bad
    kinds = [GREEDY, SamplingParams(), SamplingParams(top_k=3), SamplingParams(top_p=0.5, logprobs=3)]
    requests = [asked(params, [row]) for row in range(1, len(places) + 1) for params in kinds]
    assert check(isa, requests, table) == [None] * len(requests)
    good = [asked(params, [0], seed=3) for params in kinds]
    mixed = [request for pair in zip(good, requests, strict=False) for request in pair]
    answers = check(isa, good, table)
    assert None not in answers
    assert check(isa, mixed, table)[::2] == answers


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("options", [{"temperature": 0.0}, {}, {"top_k": 4}, {"top_p": 0.9}, {"min_p": 0.5}])
def test_nothing_left_to_choose_is_an_error(isa: str, options: dict[str, Any]):
    params = SamplingParams(logprobs=2, **options)
    everything = tuple(range(VOCAB))
    requests = [asked(params, [0], banned=everything), asked(params, [0], banned=everything[1:])]
    assert check(isa, requests) == [None, 0]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("options", [{"frequency_penalty": 2.0}, {"repetition_penalty": 100.0}])
def test_bans_of_seen_tokens_can_leave_nothing(isa: str, options: dict[str, Any]):
    everything = tuple(range(VOCAB))
    for params in (SamplingParams(**options), SamplingParams(temperature=0.0, **options)):
        assert check(isa, [asked(params, [0], prompt=everything, banned=everything)]) == [None]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("temperature", [1.0, 3.4e38])
@pytest.mark.parametrize("options", [{"frequency_penalty": 2.0}, {"repetition_penalty": 100.0}])
def test_a_banned_token_stays_banned_whatever_the_penalties(isa: str, temperature: float, options: Any):
    """A stop token in the prompt, held back by min_tokens, under a temperature that flattens everything."""
    params = SamplingParams(temperature=temperature, **options)
    banned = tuple(range(0, VOCAB, 2))
    prompt = list(range(VOCAB))
    requests = [asked(params, [0], prompt=prompt, seed=i, banned=banned) for i in range(100)]
    answers = check(isa, requests)
    assert None not in answers
    assert not set(answers) & set(banned)


@pytest.mark.parametrize("isa", ISAS)
def test_penalties_never_overflow_into_an_error(isa: str):
    """The largest finite logits times the largest penalty."""
    table = TABLE.copy()
    table[1] = 0
    table[1, :2] = 3e38, -3e38
    for repetition in (0.01, 100.0):
        params = SamplingParams(repetition_penalty=repetition, presence_penalty=-2.0, logprobs=2)
        assert check(isa, [asked(params, [0, 1], prompt=[2])], table) == [0]


@pytest.mark.parametrize("isa", ISAS)
def test_large_and_equal_logits(isa: str):
    table = TABLE.copy()
    table[1], table[2] = 3.4e38, -3.4e38
    requests = [asked(SamplingParams(logprobs=2), [row], seed=seed) for row in (1, 2) for seed in range(40)]
    answers = check(isa, requests, table)
    assert None not in answers
    assert len(set(answers)) > 30
