"""What is refused before it reaches the engine process."""

from __future__ import annotations

import asyncio

import pytest
from async_rig import FRONTEND, at_rest, collect, greedy, run, running
from engine_fakes import foretell

from rooftree.errors import RequestError


def test_refusals_cost_nothing_and_leave_the_engine_answering():
    async def test() -> None:
        async with running() as llm:
            for prompt, params, priority in [
                ([], greedy(), 0),
                ([10**9], greedy(), 0),
                ("\udcff", greedy(), 0),
                ([1], greedy(600), 0),
                ([1] * 600, greedy(None), 0),
                ([1], greedy(temperature=-1.0), 0),
                ([1], greedy(), 3),
                ([1], greedy(stop=("x" * 100_000,)), 0),
            ]:
                with pytest.raises(RequestError) as caught:
                    await collect(llm, "bad", prompt, params, priority=priority)
                assert 400 <= caught.value.status < 500
            assert (await collect(llm, "good", [1], greedy())).outputs[0].token_ids == foretell([1], 8)
            await at_rest(llm)

    run(test)


def test_a_long_text_is_tokenized_like_a_short_one():
    async def test() -> None:
        async with running() as llm:
            with pytest.raises(RequestError) as caught:
                await collect(llm, "r", "x" * 30_000, greedy())
            assert caught.value.code == "context_length_exceeded"
            output = await collect(llm, "r", "xyz", greedy(2))
            tokens = FRONTEND.tokenizer.encode("xyz", add_special_tokens=True)
            assert output.outputs[0].token_ids == foretell(tokens, 2)

    run(test)


def test_more_than_may_wait_are_refused_with_503():
    async def test() -> None:
        async with running("slow", max_num_seqs=2, max_num_waiting=3) as llm:
            tasks = [asyncio.create_task(collect(llm, str(i), [i], greedy(5))) for i in range(5)]
            await asyncio.sleep(0)
            with pytest.raises(RequestError) as caught:
                await collect(llm, "more", [1], greedy())
            assert (caught.value.status, caught.value.code) == (503, "overloaded")
            assert caught.value.retry_after is not None
            for task, index in zip(tasks, range(5), strict=True):
                assert (await task).outputs[0].token_ids == foretell([index], 5)
            with pytest.raises(RequestError, match="asks for 6 generations, of at most 5") as caught:
                await collect(llm, "many", [1], greedy(n=6))
            assert (caught.value.status, caught.value.retry_after) == (400, None)
            assert len((await collect(llm, "five", [1], greedy(n=5))).outputs) == 5

    run(test)
