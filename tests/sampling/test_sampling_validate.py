"""What is refused at the door, and with which words."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooftree.errors import RequestError
from rooftree.sampling.params import SamplingParams
from rooftree.sampling.validate import resolve_max_tokens, validate_prompt, validate_sampling_params

VOCAB = 1000
NAN, INF = float("nan"), float("inf")
FLOAT32_MAX = 3.4028234663852886e38


def check(**fields: object) -> None:
    validate_sampling_params(SamplingParams(**fields), VOCAB)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [0, 0.0, 5e-324, 1e-38, 1e-5, 1, 2.0, FLOAT32_MAX]),
        ("top_p", [0, 0.0, 1e-9, 0.5, 1, 1.0]),
        ("top_k", [-1, 0, 1, VOCAB, VOCAB + 1, 2**40]),
        ("min_p", [0, 0.0, 0.5, 1, 1.0]),
        ("presence_penalty", [-2, -2.0, 0, 2.0]),
        ("frequency_penalty", [-2.0, 2]),
        ("repetition_penalty", [0.01, 0.5, 1, 1.2, 100.0]),
        ("n", [1, 128]),
        ("seed", [None, 0, -(2**63), 2**63 - 1]),
        ("logprobs", [None, 0, 20]),
        ("ignore_eos", [True, False]),
        ("max_tokens", [None, 1, 10**9]),
        ("min_tokens", [0, 5, 10**9]),
        ("stop", [(), ("x",), ["x", "y"], ("日",), tuple("abcdefghijklmnop")]),
        ("stop_token_ids", [(), [3], (0, VOCAB - 1), (5, 5), tuple(range(500))]),
        ("logit_bias", [{}, {0: -100, VOCAB - 1: 100.0}]),
    ],
)
def test_legal_values_pass(field: str, values: list[object]) -> None:
    for value in values:
        check(**{field: value})


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [-1e-9, -1, NAN, INF, -INF, 3.41e38, 1e300, 10**400, "1", None, True, [1]]),
        ("top_p", [-0.1, 1.0001, 2, NAN, INF, "x", False]),
        ("top_k", [-2, 1.0, 2.5, NAN, "3", True, None]),
        ("min_p", [-0.1, 1.1, NAN]),
        ("presence_penalty", [-2.01, 2.01, NAN, INF]),
        ("frequency_penalty", [-3, 3, NAN]),
        ("repetition_penalty", [0, 0.0, -1, 1e-30, 101, NAN, INF]),
        ("n", [0, -1, 129, 1.0, "2", None, True]),
        ("seed", [2**63, -(2**63) - 1, 10**5000, 1.5, "7", True]),
        ("logprobs", [-1, 21, 1.0, True, "3"]),
        ("ignore_eos", [1, "yes", None]),
        ("max_tokens", [0, -1, 1.5, "9", True]),
        ("min_tokens", [-1, 0.5, None, False]),
        ("stop", [("",), ("a", ""), (1,), "END", None, tuple("abcdefghijklmnopq")]),
        ("stop_token_ids", [(VOCAB,), (-1,), (1.0,), (True,), ("2",), 5, tuple(range(501))]),
        (
            "logit_bias",
            [
                {VOCAB: 1.0},
                {-1: 1.0},
                {"5": 1.0},
                {5: 100.1},
                {5: NAN},
                {5: -INF},
                {5: "1"},
                {5: True},
                [1],
                None,
            ],
        ),
    ],
)
def test_illegal_values_are_refused_by_name(field: str, values: list[object]) -> None:
    for value in values:
        with pytest.raises(RequestError, match=f"^{field} ") as refused:
            check(**{field: value})
        assert (refused.value.status, refused.value.param) == (400, field)
        assert len(refused.value.message) < 300


def test_a_refusal_says_what_was_asked_and_what_is_possible() -> None:
    for fields, message in [
        (
            {"temperature": -0.5},
            "temperature is -0.5; possible: a number from 0 (greedy) to 3.4e38 (samplers use 32 bits).",
        ),
        ({"logprobs": 25}, "logprobs is 25; possible: a whole number from 0 to 20."),
        ({"stop_token_ids": (1000,)}, "stop_token_ids is 1000; possible: token ids from 0 to 999."),
        (
            {"seed": 2**200},
            "seed is a whole number of 201 bits; possible: a whole number that fits in 64 bits, signed.",
        ),
        ({"stop": "END"}, "stop is 'END'; possible: a list."),
        ({"stop": tuple("abcdefghijklmnopq")}, "stop has 17 entries; possible: at most 16."),
        (
            {"min_tokens": 9, "max_tokens": 8},
            "min_tokens is 9; possible: a whole number from 0 up to max_tokens, which is 8.",
        ),
    ]:
        with pytest.raises(RequestError) as refused:
            check(**fields)
        assert refused.value.message == message


def test_the_limit_of_logprobs_can_be_set() -> None:
    validate_sampling_params(SamplingParams(logprobs=50), VOCAB, max_logprobs=50)
    with pytest.raises(RequestError, match="from 0 to 5"):
        validate_sampling_params(SamplingParams(logprobs=6), VOCAB, max_logprobs=5)


def test_logit_bias_is_bounded_in_size() -> None:
    bias = dict.fromkeys(range(1025), 1.0)
    with pytest.raises(RequestError, match="logit_bias has 1025 entries; possible: at most 1024"):
        validate_sampling_params(SamplingParams(logit_bias=bias), 50_000)


def test_stop_tokens_can_never_ban_a_whole_vocabulary() -> None:
    with pytest.raises(RequestError, match="stop_token_ids has 3 entries; possible: at most 2"):
        validate_sampling_params(SamplingParams(stop_token_ids=(0, 1, 2), min_tokens=1), 4)


@pytest.mark.parametrize("prompt", [[0], [VOCAB - 1], list(range(VOCAB)), (1, 2)])
def test_prompts_of_the_vocabulary_pass(prompt: list[int]) -> None:
    validate_prompt(prompt, VOCAB)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "The prompt has no tokens"),
        ([1, VOCAB], "Token 1 of the prompt is 1000; this model's token ids are whole numbers from 0 to 999"),
        ([-1, 5], "Token 0 of the prompt is -1"),
        ([1, 2, 3.0], "Token 2 of the prompt is 3.0"),
        ([1, True], "Token 1 of the prompt is True"),
        ([1, "2"], "Token 1 of the prompt is '2'"),
        ([1, None], "Token 1 of the prompt is None"),
        ([[1]], r"Token 0 of the prompt is \[1\]"),
        ([10**5000], "Token 0 of the prompt is a whole number of 16610 bits"),
    ],
)
def test_other_prompts_are_refused_with_the_first_fault(prompt: list[int], message: str) -> None:
    with pytest.raises(RequestError, match=message) as refused:
        validate_prompt(prompt, VOCAB)
    assert (refused.value.status, refused.value.param) == (400, "prompt")


L = 64


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "expected"),
    [
        (L - 2, 2, 2),
        (L - 2, 1, 1),
        (L - 1, 1, 1),
        (L - 2, None, 2),
        (L - 1, None, 1),
        (1, None, L - 1),
        (L - 2, 3, "max_tokens"),
        (L - 1, 2, "max_tokens"),
        (1, 10**9, "max_tokens"),
        (L, 1, "prompt"),
        (L, None, "prompt"),
        (L + 1, 1, "prompt"),
        (L + 1, None, "prompt"),
    ],
)
def test_case_07_the_edge_of_the_context_window(
    prompt: int, max_tokens: int | None, expected: int | str
) -> None:
    params = SamplingParams(max_tokens=max_tokens)
    if isinstance(expected, int):
        assert resolve_max_tokens(prompt, params, L) == expected
        return
    with pytest.raises(RequestError) as refused:
        resolve_max_tokens(prompt, params, L)
    error = refused.value
    assert (error.status, error.param, error.code) == (400, expected, "context_length_exceeded")
    numbers = {int(n) for n in re.findall(r"\d+", error.message)}
    assert numbers >= {prompt, L} | ({max_tokens} if max_tokens else set())


def test_min_tokens_must_fit_the_window_too() -> None:
    assert resolve_max_tokens(60, SamplingParams(min_tokens=4), L) == 4
    with pytest.raises(RequestError, match="min_tokens is 5, at most 4 are possible") as refused:
        resolve_max_tokens(60, SamplingParams(min_tokens=5), L)
    assert refused.value.param == "min_tokens"


anything = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.integers(), max_size=2),
)


@given(st.sampled_from(SamplingParams.__struct_fields__), anything)
def test_any_value_passes_or_is_refused_for_its_field(field: str, value: object) -> None:
    """Never another error: a wrong type must not reach the sampler or end the process."""
    refused = None
    try:
        check(**{field: value})
    except RequestError as error:
        refused = error
    assert refused is None or refused.param == field
