"""Counts that follow from dimensions (case 20)."""

from __future__ import annotations

import pytest

from rigs.models import FAMILIES, random_weights, tiny_spec
from rooftree.specs.model import ModelSpec, RopeSpec


def spec(**over: object) -> ModelSpec:
    """SmolLM2-135M's dimensions, with some replaced."""
    return tiny_spec(
        **{
            "vocab_size": 49152,
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_layers": 30,
            "num_heads": 9,
            "num_kv_heads": 3,
            "head_dim": 64,
            "tie_word_embeddings": True,
        }
        | over
    )


def test_kv_bytes_come_from_kv_heads_and_the_given_head_dim():
    wide = spec(hidden_size=5120, num_heads=64, num_kv_heads=8, head_dim=128, num_layers=64)
    assert wide.kv_bytes_per_token(2) == 262_144
    assert spec().kv_bytes_per_token(2) == 23_040


def test_a_tied_head_is_counted_once():
    assert spec().num_parameters == 134_515_008
    assert spec(tie_word_embeddings=False).num_parameters == 134_515_008 + 49152 * 576


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [True, False])
def test_parameters_are_the_sum_of_all_tensors(family, tied):
    small = tiny_spec(family, tie_word_embeddings=tied, qkv_bias=True, o_bias=True, mlp_bias=True)
    assert small.num_parameters == sum(values.size for values in random_weights(small).values())


def test_sizes_of_query_and_key():
    assert (spec().q_size, spec().kv_size) == (576, 192)


def test_a_spec_is_a_value():
    assert spec() == spec()
    assert hash(spec()) == hash(spec())
    assert RopeSpec(theta=1e6) != RopeSpec()
