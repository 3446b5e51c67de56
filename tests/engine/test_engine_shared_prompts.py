"""A prompt that one request computes for others, by a real model: no order of coming and going shows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rooftree.engine.core import EngineCore
from rooftree.engine.llm import LLM
from rooftree.engine.messages import EngineCoreOutput, EngineCoreRequest
from rooftree.sampling.params import SamplingParams

MAX_TOKENS = 6
TOKENS = np.random.default_rng(8).integers(0, 256, 80).tolist()
# About the borders of blocks of 16, with the same beginning; the last parts from the others within a block.
PROMPTS = [TOKENS[:16], TOKENS[:32], TOKENS[:33], TOKENS[:64], TOKENS[:70], [*TOKENS[:40], 1, 2, 3]]
KINDS = [SamplingParams(temperature=0.0), SamplingParams(temperature=1.0, logprobs=2)]

Asked = tuple[int, int, int]  # prompt, kind of sampling, seed

moves = st.lists(
    st.tuples(
        st.just("add"), st.tuples(st.integers(0, 5), st.integers(0, 1), st.integers(0, 2)), st.integers(1, 4)
    )
    | st.tuples(st.just("abort"), st.integers(0, 99), st.just(1))
    | st.tuples(st.just("step"), st.none(), st.integers(1, 6)),
    min_size=1,
    max_size=25,
)


class Load:
    """Requests under way in one engine, and what each has been told."""

    serial = count()

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.asked: dict[str, Asked] = {}
        self.news: dict[str, list[EngineCoreOutput]] = {}
        self.live: set[str] = set()
        self.aborted: set[str] = set()

    def add(self, asked: Asked, salt: str) -> None:
        name = f"r{next(self.serial)}"
        prompt, kind, seed = asked
        self.asked[name], self.news[name] = asked, []
        self.live.add(name)
        request = EngineCoreRequest(name, PROMPTS[prompt], KINDS[kind], MAX_TOKENS, seed, cache_salt=salt)
        self.core.add_request(request)

    def abort(self, which: int) -> None:
        if self.live:
            name = sorted(self.live)[which % len(self.live)]
            self.live.remove(name)
            self.aborted.add(name)
            self.core.abort_requests([name])

    def step(self) -> None:
        for output in self.core.step().outputs:
            self.news[output.request_id].append(output)
            if output.finish_reason is not None:
                self.live.remove(output.request_id)
        assert self.core.scheduler.check_conservation() == []

    def answer(self, name: str) -> list[tuple[object, ...]]:
        return [(news.new_token_ids, news.logprobs, news.finish_reason) for news in self.news[name]]


@pytest.mark.parametrize(("family", "dtype"), [("llama", "F32"), ("mistral", "Q4_0"), ("qwen3", "BF16")])
def test_an_answer_is_the_same_whoever_else_asks_for_its_prompt(
    make_tiny_llm: Callable[..., LLM], family: str, dtype: str
) -> None:
    core = make_tiny_llm(
        family,
        dtype,
        kv_cache_memory=12 * 16 * 2 * 2 * 32 * 2,
        kv_watermark=0.0,
        max_num_seqs=8,
        max_num_batched_tokens=40,
    ).core
    alone: dict[Asked, list[tuple[object, ...]]] = {}

    def answer_alone(asked: Asked) -> list[tuple[object, ...]]:
        if asked not in alone:
            load = Load(core)
            load.add(asked, salt=f"alone {asked}")
            while load.live:
                load.step()
            (name,) = load.news
            alone[asked] = load.answer(name)
            assert len(alone[asked]) == MAX_TOKENS
        return alone[asked]

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(moves)
    def check(moves: list[tuple[str, object, int]]) -> None:
        load = Load(core)
        salt = f"round {next(Load.serial)}"
        for move, what, times in moves:
            for _ in range(times):
                if move == "add":
                    load.add(what, salt)
                elif move == "abort":
                    load.abort(what)
                else:
                    load.step()
        while load.live:
            load.step()
        for name, asked in load.asked.items():
            told, expected = load.answer(name), answer_alone(asked)
            assert told == expected[: len(told)]
            assert len(told) == MAX_TOKENS or name in load.aborted
        assert core.stats().num_owned_blocks == 0

    check()
    assert core.stats().prefix_cache_hits <= core.stats().prefix_cache_queries
    assert core.stats().prefix_cache_hits > 0
