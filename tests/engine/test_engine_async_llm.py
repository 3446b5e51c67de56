"""Requests to an engine process: their answers, and how they end early."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import pytest
from async_rig import at_rest, collect, greedy, run, running
from engine_fakes import StatRecorder, foretell, make_llm
from hypothesis import given, settings
from hypothesis import strategies as st

from rooftree.engine.messages import AddRequest, EngineCoreRequest, EngineInput
from rooftree.errors import RequestError


def test_answers_equal_those_of_llm_in_process():
    prompts = [[i] * (5 * i + 1) for i in range(12)]
    params = [greedy(20, n=1 + i % 3, logprobs=i % 2, stop=("a", "xy")) for i in range(12)]
    offline = make_llm().generate(prompts, params)

    async def test() -> None:
        async with running() as llm:
            jobs = [collect(llm, str(i), prompts[i], params[i]) for i in range(12)]
            for output, expected in zip(await asyncio.gather(*jobs), offline, strict=True):
                assert output.outputs == expected.outputs
            await at_rest(llm)

    run(test)


def test_the_prompt_of_many_choices_crosses_once():
    async def test() -> None:
        async with running() as llm:
            sent: list[bytes] = []
            encode = llm._client._encode
            llm._client._encode = lambda message: sent.append(encode(message)) or sent[-1]
            output = await collect(llm, "r", [1] * 400, greedy(2, n=20))
            assert len(output.outputs) == 20
            assert len(sent) == 1
            assert len(sent[0]) < 2000
            await at_rest(llm)

    run(test)


@given(st.lists(st.tuples(st.text(), st.integers(0, 2**64 - 1)), min_size=1))
def test_choices_cross_as_they_are(choices: list[tuple[str, int]]):
    asked = [EngineCoreRequest(name, [1, 2], greedy(), 8, seed, (3,), -1, "salt") for name, seed in choices]
    message = msgspec.msgpack.decode(msgspec.msgpack.encode(AddRequest.of(asked)), type=EngineInput)
    assert list(message.choices()) == asked


def test_closing_a_generator_ends_its_request():
    async def test() -> None:
        async with running("slow", stats := StatRecorder(), max_num_seqs=1) as llm:
            for index in range(10):
                stream = llm.generate(str(index), [1], greedy(500))
                await anext(stream)
                await stream.aclose()
            assert (await collect(llm, "next", [2], greedy())).outputs[0].token_ids == foretell([2], 8)
            await at_rest(llm)
            assert stats.finished_by_reason() == {"abort": 10, "length": 1}

    run(test)


def test_cancelling_a_reader_ends_its_request_also_while_it_waits():
    async def test() -> None:
        async with running("slow", max_num_seqs=1) as llm:
            tasks = [asyncio.create_task(collect(llm, str(i), [i], greedy(500))) for i in range(4)]
            await asyncio.sleep(0.3)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await at_rest(llm)

    run(test)


def test_abort_gives_the_reader_a_last_delta():
    async def test() -> None:
        async with running("slow") as llm:
            outputs = []
            async for output in llm.generate("r", [1], greedy(500, n=2)):
                outputs.append(output)
                await llm.abort("r")
            assert [choice.finish_reason for choice in outputs[-1].outputs] == ["abort", "abort"]
            assert outputs[-1].finished
            await llm.abort("unknown")
            await at_rest(llm)

    run(test)


def test_an_id_can_be_used_again_at_once_but_not_twice_at_a_time():
    async def test() -> None:
        async with running("slow") as llm:
            for _ in range(5):
                stream = llm.generate("r", [1], greedy(500))
                await anext(stream)
                with pytest.raises(RequestError, match="in use"):
                    await anext(llm.generate("r", [1], greedy()))
                await stream.aclose()
            assert (await collect(llm, "r", [2], greedy(4))).outputs[0].token_ids == foretell([2], 4)
            await at_rest(llm)

    run(test)


def test_a_slow_reader_gets_few_large_deltas_and_the_whole_answer():
    async def test() -> None:
        async with running() as llm:
            deltas = []
            async for output in llm.generate("slow", [1], greedy(300)):
                deltas.append(output)
                other = await collect(llm, "other", [2], greedy(40))
                assert other.outputs[0].token_ids == foretell([2], 40)
            assert len(deltas) < 60
            assert [t for d in deltas for t in d.outputs[0].token_ids] == foretell([1], 300)

    run(test)


def test_aborts_at_any_moment_leave_the_others_whole():
    plan = st.lists(
        st.tuples(st.integers(1, 60), st.integers(1, 40), st.integers(0, 30), st.integers(0, 3)),
        min_size=1,
        max_size=10,
    )

    async def test() -> None:
        async with running(max_num_seqs=3, max_num_batched_tokens=32) as llm:
            serial = 0

            async def reader(length: int, max_tokens: int, reads: int, pause: int) -> None:
                nonlocal serial
                serial += 1
                prompt = [length % 3] * length
                tokens: list[int] = []
                async with contextlib.aclosing(
                    llm.generate(str(serial), prompt, greedy(max_tokens))
                ) as stream:
                    async for output in stream:
                        tokens += output.outputs[0].token_ids
                        if reads == 0:
                            break
                        reads -= 1
                        for _ in range(pause):
                            await asyncio.sleep(0)
                    else:
                        assert len(tokens) == max_tokens
                assert tokens == foretell(prompt, max_tokens)[: len(tokens)]

            async def trial(plans: list[tuple[int, int, int, int]]) -> None:
                await asyncio.gather(*(reader(*plan) for plan in plans))
                await at_rest(llm)

            loop = asyncio.get_running_loop()

            @settings(max_examples=40, deadline=None)
            @given(plan)
            def trials(plans: list[tuple[int, int, int, int]]) -> None:
                asyncio.run_coroutine_threadsafe(trial(plans), loop).result(30)

            await asyncio.to_thread(trials)

    run(test)
