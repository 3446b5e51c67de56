"""The native sampler against the reference: same token, same log-probabilities, and the right frequencies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_rig import GREEDY, ISAS, RowProgram, asked
from sampler_rig import edited, reference, tokens_within_rounding

from rooftree import _native
from rooftree.kernels.ops import Floats
from rooftree.kernels.reference_sampler import Sample, candidate_probabilities, philox_uniform
from rooftree.sampling.params import SamplingParams
from rooftree.scheduler.output import ScheduledRequest

OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "plain": {},
    "cool": {"temperature": 0.25},
    "hot": {"temperature": 5.0},
    "top_k": {"top_k": 5},
    "top_k_most": {"top_k": 300, "temperature": 2.0},
    "top_p": {"top_p": 0.875},
    "top_p_nearly_all": {"top_p": 0.9990234375, "temperature": 1.5},
    "min_p": {"min_p": 0.0625},
    "all_filters": {"temperature": 1.5, "top_k": 40, "top_p": 0.875, "min_p": 0.015625},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 0.5},
    "repetition": {"repetition_penalty": 1.5},
    "rewards": {"presence_penalty": -1.0, "frequency_penalty": -0.25, "repetition_penalty": 0.75},
    "bias": {"logit_bias": {0: 4.5, 7: -3.25, 100: 100.0, 511: -100.0}},
    "everything": {
        "temperature": 1.25,
        "top_k": 50,
        "top_p": 0.9375,
        "min_p": 0.0078125,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.25,
        "repetition_penalty": 1.25,
        "logit_bias": {3: 2.5, 200: -1.5},
    },
}


def make_table(rows: int, vocab: int, seed: int = 0, step: float = 0.0) -> Floats:
    """Logits of a model's size; ``step`` rounds them so that many are equal."""
    table = np.random.default_rng(seed).normal(0, 3, (rows, vocab)).astype(np.float32)
    return (np.round(table / step) * np.float32(step)).astype(np.float32) if step else table


def assert_same_logprobs(got: Sample, expected: Sample) -> None:
    assert got.rank == expected.rank
    assert got.logprob == pytest.approx(expected.logprob, abs=1e-5)
    assert got.top_ids == expected.top_ids
    assert got.top_logprobs == pytest.approx(expected.top_logprobs, abs=1e-5)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("step", [0.0, 0.5], ids=["different", "ties"])
@pytest.mark.parametrize("name", OPTIONS)
def test_tokens_and_logprobs_are_the_reference_ones(isa: str, name: str, step: float):
    table = make_table(64, 512, step=step)
    rng = np.random.default_rng(1)
    params = SamplingParams(**OPTIONS[name], logprobs=7)
    requests = [
        asked(
            params,
            [*rng.integers(0, 512, i % 9).tolist(), i % 64],
            prompt=rng.integers(0, 512, i % 5).tolist(),
            seed=int(rng.integers(-(2**63), 2**63)),
            banned=tuple(rng.integers(0, 512, i % 3).tolist()),
        )
        for i in range(64)
    ]
    for request, got in zip(requests, RowProgram(table, isa=isa).sample(requests), strict=True):
        expected = reference(table, request)
        assert got is not None
        assert expected is not None
        assert got.token == expected.token
        assert_same_logprobs(got, expected)


floats = st.floats(0, 1, width=32)
penalties = st.one_of(st.just(0.0), st.floats(-2, 2, width=32))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Floats, list[ScheduledRequest]]:
    """A table of any small vocabulary, and requests with any legal mixture of options."""
    vocab = draw(st.sampled_from([1, 2, 7, 8, 15, 16, 17, 31, 100, 1025]))
    rows = min(vocab, 4)
    table = make_table(rows, vocab, draw(st.integers(0, 999)), draw(st.sampled_from([0.0, 0.25, 2.0])))
    ids = st.integers(0, vocab - 1)
    requests = []
    for _ in range(draw(st.integers(1, 4))):
        params = SamplingParams(
            temperature=draw(st.sampled_from([0.0, 0.125, 0.75, 1.0, 3.0, 1e6])),
            top_k=draw(st.integers(-1, vocab + 1)),
            top_p=draw(st.one_of(st.just(1.0), floats)),
            min_p=draw(st.one_of(st.just(0.0), floats)),
            presence_penalty=draw(penalties),
            frequency_penalty=draw(penalties),
            repetition_penalty=draw(st.sampled_from([1.0, 1.0, 0.5, 2.0])),
            logit_bias=draw(st.dictionaries(ids, st.floats(-100, 100, width=32), max_size=3)),
            logprobs=draw(st.sampled_from([None, 0, 1, 20])),
        )
        output = [*draw(st.lists(ids, max_size=6)), draw(st.integers(0, rows - 1))]
        prompt = draw(st.lists(ids, max_size=6))
        banned = tuple(set(draw(st.lists(ids, max_size=3))))
        seed = draw(st.integers(-(2**63), 2**63 - 1))
        requests.append(asked(params, output, prompt=prompt, seed=seed, banned=banned))
    return table, requests


@settings(deadline=None, max_examples=150)
@given(cases(), st.sampled_from(ISAS))
def test_any_mixture_of_options(case: tuple[Floats, list[ScheduledRequest]], isa: str):
    table, requests = case
    program = RowProgram(table, isa=isa)
    samples = program.sample(requests)
    for i, (request, got) in enumerate(zip(requests, samples, strict=True)):
        expected = reference(table, request)
        assert (got is None) == (expected is None)
        if got is None or expected is None:
            continue
        np.testing.assert_allclose(program.logits(len(requests))[i], edited(table, request), 1e-6, 1e-5)
        if got.token != expected.token:
            assert got.token in tokens_within_rounding(table, request)
        elif request.params.logprobs is not None:
            assert_same_logprobs(got, expected)


@pytest.mark.parametrize("isa", ISAS)
def test_ties_go_to_the_lower_id(isa: str):
    table = np.zeros((2, 100), np.float32)
    table[1, [90, 17, 33]] = 1
    program = RowProgram(table, isa=isa)
    top = SamplingParams(temperature=0.0, logprobs=5)
    first, second = program.sample([asked(top, [0]), asked(top, [1])])
    assert first is not None
    assert second is not None
    assert (first.token, first.rank, first.top_ids) == (0, 1, (0, 1, 2, 3, 4))
    assert (second.token, second.rank, second.top_ids) == (17, 1, (17, 33, 90, 0, 1))
    two = SamplingParams(top_k=2)
    assert {s.token for s in program.sample([asked(two, [0], seed=i) for i in range(40)]) if s} == {0, 1}
    assert {s.token for s in program.sample([asked(two, [1], seed=i) for i in range(40)]) if s} == {17, 33}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["plain", "hot", "top_k", "top_p", "min_p", "all_filters", "presence"])
def test_frequencies_follow_the_distribution(isa: str, name: str):
    """Pearson's statistic over 6,400 draws of fixed seeds, within four deviations of its mean."""
    table = make_table(1, 50, seed=3)
    params = SamplingParams(**OPTIONS[name])
    program = RowProgram(table, isa=isa)
    counts = np.zeros(50)
    for begin in range(0, 6400, 128):
        for s in program.sample([asked(params, [0], seed=begin + i) for i in range(128)]):
            assert s is not None
            counts[s.token] += 1
    ids, weights = candidate_probabilities(edited(table, asked(params, [0])), params)
    expected = np.zeros(50)
    expected[ids] = weights / weights.sum() * 6400
    assert counts[expected == 0].sum() == 0
    common = expected >= 5
    rare = (~common) & (expected > 0)
    observed = np.append(counts[common], counts[rare].sum())
    wanted = np.append(expected[common], max(expected[rare].sum(), 1e-9))
    statistic = ((observed - wanted) ** 2 / np.maximum(wanted, 1)).sum()
    freedom = len(observed) - 1
    assert statistic < freedom + 4 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_request_draws_the_same_whatever_stands_beside_it(threads: int):
    program = RowProgram(make_table(8, 512, seed=5), threads=threads)
    requests = [
        asked(SamplingParams(**options, logprobs=3), [i % 8], seed=i)
        for i, options in enumerate(OPTIONS.values())
    ]
    alone = [program.sample([request])[0] for request in requests]
    assert program.sample(requests) == alone
    assert program.sample(requests[::-1]) == alone[::-1]


def test_each_step_of_a_request_draws_anew():
    program = RowProgram(np.zeros((1, 1000), np.float32))
    tokens = [program.sample([asked(SamplingParams(), [0] * n, seed=9)])[0] for n in range(1, 30)]
    assert len({s.token for s in tokens if s}) > 25


@settings(deadline=None)
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1))
def test_random_numbers_are_the_same_everywhere(seed: int, counter: int):
    u = philox_uniform(seed, counter)
    assert u == _native.philox_uniform(seed, counter)
    assert 0 <= u < 1


def test_random_numbers_are_philox():
    """The first two words of the published known-answer tests (Random123, philox4x32-10)."""
    first = (0x6627E8D5 << 32 | 0xE169C58D) >> 11
    assert philox_uniform(0, 0) == first * 2.0**-53


@pytest.mark.parametrize("vary", ["seed", "counter"])
def test_random_numbers_are_uniform(vary: str):
    n = 20_000
    u = np.array([_native.philox_uniform(*((i, 3) if vary == "seed" else (3, i))) for i in range(n)])
    assert abs(u.mean() - 0.5) < 4 / np.sqrt(12 * n)
    counts = np.histogram(u, 100, (0, 1))[0]
    assert ((counts - n / 100) ** 2 / (n / 100)).sum() < 99 + 4 * np.sqrt(2 * 99)
    assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 4 / np.sqrt(n)
    assert len(np.unique(u)) == n


def test_greedy_needs_no_logprobs():
    (sampled,) = RowProgram(make_table(1, 40)).sample([asked(GREEDY, [0])])
    assert sampled == Sample(int(np.argmax(make_table(1, 40))))
