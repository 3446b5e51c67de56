"""Rotary frequencies against those of ``transformers``, and against their formulas."""

from __future__ import annotations

import numpy as np
import pytest
from transformers_fixtures import NAMES, expected_of, open_fixture

from rooftree.models.rope import inverse_frequencies, rope_tables
from rooftree.specs.model import RopeSpec


@pytest.mark.parametrize("name", NAMES)
def test_frequencies_are_those_of_transformers(name: str):
    spec, expected = open_fixture(name).spec, expected_of(name)
    got = inverse_frequencies(spec.rope, spec.head_dim)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected.inverse_frequencies, rtol=3e-7)
    assert spec.rope.attention_factor == pytest.approx(expected.attention_factor, rel=1e-7)


def test_every_kind_of_scaling_is_among_the_fixtures():
    kinds = {open_fixture(name).spec.rope.kind for name in NAMES}
    assert kinds == {"default", "linear", "llama3", "yarn"}


def test_default():
    expected = 500_000.0 ** -(np.arange(0, 128, 2) / 128)
    np.testing.assert_allclose(inverse_frequencies(RopeSpec(theta=500_000.0), 128), expected, rtol=1e-6)


def test_linear_divides_all():
    plain = inverse_frequencies(RopeSpec(), 64)
    np.testing.assert_array_equal(inverse_frequencies(RopeSpec(kind="linear", factor=4.0), 64), plain / 4)


def test_frequency_factors_divide_one_by_one():
    factors = tuple(1.0 + i for i in range(8))
    plain = inverse_frequencies(RopeSpec(), 16)
    got = inverse_frequencies(RopeSpec(freq_factors=factors), 16)
    np.testing.assert_array_equal(got, plain / np.float32(factors))


def test_llama3_as_published():
    """Llama 3.1 8B: waves shorter than 2,048 stay, those beyond 8,192 are stretched eightfold."""
    rope = RopeSpec(theta=500_000.0, kind="llama3", factor=8.0, original_max_position=8192)
    plain, got = inverse_frequencies(RopeSpec(theta=500_000.0), 128), inverse_frequencies(rope, 128)
    waves = 2 * np.pi / plain
    np.testing.assert_array_equal(got[waves < 2048], plain[waves < 2048])
    np.testing.assert_allclose(got[waves > 8192], plain[waves > 8192] / 8, rtol=1e-6)
    between = (waves > 2048) & (waves < 8192)
    assert between.any()
    assert ((got < plain) & (got > plain / 8))[between].all()
    assert (np.diff(got) < 0).all()


def test_yarn_keeps_fast_pairs_and_stretches_slow_ones():
    rope = RopeSpec(kind="yarn", factor=16.0, original_max_position=4096)
    plain, got = inverse_frequencies(RopeSpec(), 128), inverse_frequencies(rope, 128)
    turns = 4096 * plain / (2 * np.pi)
    np.testing.assert_array_equal(got[turns > 40], plain[turns > 40])
    np.testing.assert_allclose(got[turns < 0.8], plain[turns < 0.8] / 16, rtol=1e-6)
    assert (np.diff(got) < 0).all()


@pytest.mark.parametrize("original", [4, 16, 4096, 10**6])
@pytest.mark.parametrize("head_dim", [2, 8, 64, 256])
def test_yarn_of_any_length_stays_between_plain_and_stretched(head_dim: int, original: int):
    """Also where the ramp's ends fall outside the pairs, or on one another."""
    rope = RopeSpec(kind="yarn", factor=4.0, original_max_position=original)
    plain, got = inverse_frequencies(RopeSpec(), head_dim), inverse_frequencies(rope, head_dim)
    assert np.isfinite(got).all()
    assert (got <= plain * np.float32(1.000001)).all()
    assert (got >= plain / np.float32(4.000001)).all()


def test_tables():
    rope = RopeSpec(kind="yarn", factor=4.0, original_max_position=16, attention_factor=1.5)
    cos, sin = rope_tables(rope, 16, 50)
    assert cos.shape == sin.shape == (50, 8)
    assert cos.dtype == sin.dtype == np.float32
    np.testing.assert_allclose(np.hypot(cos, sin), 1.5, rtol=1e-6)
    angles = np.outer(np.arange(50), inverse_frequencies(rope, 16).astype(np.float64))
    np.testing.assert_allclose(cos, 1.5 * np.cos(angles), atol=1e-5)
    np.testing.assert_allclose(sin, 1.5 * np.sin(angles), atol=1e-5)
    np.testing.assert_array_equal(cos[0], np.full(8, 1.5, np.float32))
    np.testing.assert_array_equal(sin[0], np.zeros(8, np.float32))
