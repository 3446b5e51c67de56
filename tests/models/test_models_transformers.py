"""Logits of tiny random models against ``transformers``, after every position of a prompt.

The bound is a share of the spread of a row's logits; what is measured is about a millionth.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from transformers_fixtures import NAMES, expected_of, open_fixture

from rooftree import _native
from rooftree.checkpoint.base import Checkpoint
from rooftree.engine.executors.cpu import CPUExecutor
from rooftree.engine.executors.reference import ReferenceExecutor
from rooftree.sampling.params import SamplingParams
from rooftree.scheduler.output import ScheduledRequest, SchedulerOutput
from rooftree.specs.model import RopeSpec

BOUND = 5e-6
GREEDY = SamplingParams(temperature=0.0)
OPTIONS: dict[str, Any] = {"max_num_seqs": 40, "max_num_batched_tokens": 1024, "max_model_len": 64}


def logits_of_prefixes(executor: Any, token_ids: np.ndarray) -> np.ndarray:
    """Every prefix of the prompt as a request of its own, all in one step."""
    executor.allocate_kv_cache(3 * len(token_ids))
    requests = [
        ScheduledRequest(
            str(n), token_ids[:n].tolist(), n, 0, n, [3 * n - 3, 3 * n - 2, 3 * n - 1], True, GREEDY, 0
        )
        for n in range(1, len(token_ids) + 1)
    ]
    counts = {request.request_id: request.num_tokens for request in requests}
    executor.execute(SchedulerOutput(requests, counts, sum(counts.values())))
    return executor.last_logits(len(requests))


def error(got: np.ndarray, expected: np.ndarray) -> float:
    spread = expected.max(axis=1, keepdims=True) - expected.min(axis=1, keepdims=True)
    return float((np.abs(got - expected) / spread).max())


def reference_error(checkpoint: Checkpoint, name: str) -> float:
    expected = expected_of(name)
    executor = ReferenceExecutor(checkpoint, kv_cache_dtype="fp32", **OPTIONS)
    return error(logits_of_prefixes(executor, expected.token_ids), expected.logits)


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_equals_transformers(name: str):
    assert reference_error(open_fixture(name), name) < BOUND


@pytest.mark.parametrize("isa", _native.supported_isas())
@pytest.mark.parametrize("name", NAMES)
def test_the_native_kernels_equal_transformers(name: str, isa: str):
    expected = expected_of(name)
    executor = CPUExecutor(open_fixture(name), kv_cache_dtype="fp32", isa=isa, threads=2, **OPTIONS)
    assert error(logits_of_prefixes(executor, expected.token_ids), expected.logits) < BOUND


def test_every_family_tied_and_untied():
    specs = [open_fixture(name).spec for name in NAMES]
    assert {spec.family for spec in specs} == {"llama", "mistral", "qwen2", "qwen3"}
    assert {spec.tie_word_embeddings for spec in specs} == {True, False}


WITHOUT: dict[str, dict[str, Any]] = {
    "llama-linear": {"rope": RopeSpec()},
    "llama-llama3": {"rope": RopeSpec()},
    "llama-yarn": {"rope": RopeSpec()},
    "mistral": {"windows": (None, None)},
    "qwen2-window": {"windows": (None, None)},
    "llama": {"windows": (30, 30)},
    "qwen3-yarn": {"rms_norm_eps": 1e-2},
}


@pytest.mark.parametrize("name", WITHOUT)
def test_the_fixtures_would_show_it_if_a_part_were_missing(name: str):
    checkpoint = open_fixture(name)
    changed = replace(checkpoint, spec=replace(checkpoint.spec, **WITHOUT[name]))
    assert reference_error(changed, name) > 100 * BOUND


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("llama-biases", "o_proj.bias"),
        ("llama-biases", "up_proj.bias"),
        ("qwen2", "k_proj.bias"),
        ("qwen2", "v_proj.bias"),
        ("qwen3", "k_norm.weight"),
        ("qwen3", "q_norm.weight"),
    ],
)
def test_the_fixtures_would_show_it_if_a_vector_were_missing(name: str, part: str):
    checkpoint = open_fixture(name)
    tensors = {key: tensor for key, tensor in checkpoint.tensors.items() if not key.endswith(part)}
    assert len(tensors) == len(checkpoint.tensors) - checkpoint.spec.num_layers
    assert reference_error(replace(checkpoint, tensors=tensors), name) > 100 * BOUND
