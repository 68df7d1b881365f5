"""Streams for asyncio beside threads, other loops, and a model that is closed."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from asyncio_streams import GREEDY, LONG, Gate, anext_of, read, run, text_of, until
from patience import PATIENCE_S
from powerinfer import LLM, AsyncTextStream, PowerInferError, PromptError


def test_threads_and_tasks_go_on_side_by_side(llm: LLM) -> None:
    async def main() -> None:
        stream = llm.stream("hello", LONG)
        pieces = [await asyncio.to_thread(next, stream)]
        other = asyncio.create_task(read(llm.astream("world", GREEDY)))
        call = asyncio.create_task(asyncio.to_thread(text_of, llm, "world"))
        assert (await other, await call) == (wanted, wanted)
        pieces += await asyncio.to_thread(list, stream)
        assert "".join(pieces) == long_text

    long_text, wanted = text_of(llm, "hello", LONG), text_of(llm, "world")
    run(main())


def test_more_waiting_threads_than_the_loop_has_block_nobody(llm: LLM) -> None:
    """They take every thread of the loop's executor; streams have one of their own."""

    async def main() -> None:
        async with llm.astream("hello", LONG) as stream:
            pieces = [await anext(stream)]
            calls = [asyncio.to_thread(text_of, llm, "world") for _ in range(80)]
            waiting = asyncio.gather(*calls)
            pieces += [piece async for piece in stream]
        assert "".join(pieces) == long_text
        assert await waiting == [wanted] * 80

    long_text, wanted = text_of(llm, "hello", LONG), text_of(llm, "world")
    run(main())


def test_closing_the_model_ends_streams(llm: LLM) -> None:
    async def main() -> None:
        stream = llm.astream("hello", LONG)
        await anext(stream)
        gate = Gate()
        waiting = asyncio.create_task(read(llm.astream("world", gate.params())))
        await until(gate.reached.is_set)
        closing = asyncio.create_task(asyncio.to_thread(llm.close))
        await until(lambda: llm._engine.is_closed)
        gate.opened.set()
        await closing
        for use in (anext_of(stream), waiting):
            with pytest.raises(
                PowerInferError, match="the LLM was closed before this call finished"
            ):
                await use

    run(main())


def test_prompts_are_checked_at_once(llm: LLM) -> None:
    with pytest.raises(PromptError, match="the prompt is empty"):
        llm.astream([])
    with pytest.raises(PromptError, match="one text, got n = 2"):
        llm.astream("hello", replace(GREEDY, n=2))


def test_a_loop_that_ends_leaves_the_model_usable(llm: LLM) -> None:
    kept: list[AsyncTextStream] = []

    async def main() -> None:
        kept.append(llm.astream("hello", LONG))
        await anext(kept[-1])

    wanted = text_of(llm, "world")
    for _ in range(3):
        run(main())
        assert text_of(llm, "world") == wanted


def test_many_tasks_and_threads_with_every_manner_of_leaving(tiny: Path) -> None:
    prompts = ["hello", "world", "a", "héllo wörld"]

    with LLM(tiny, threads=2) as llm:
        wanted = {prompt: text_of(llm, prompt) for prompt in prompts}

        async def use(number: int) -> None:
            random = np.random.default_rng(number)
            for _ in range(6):
                prompt = prompts[random.integers(4)]
                manner = random.integers(5)
                stream = llm.astream(prompt, GREEDY)
                if manner == 0:
                    assert await read(stream) == wanted[prompt]
                elif manner == 1:
                    async with stream:
                        assert wanted[prompt].startswith(await anext(stream))
                elif manner == 2:
                    await anext(stream)
                    assert await read(llm.astream(prompt, GREEDY)) == wanted[prompt]
                elif manner == 3:
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(random.random() * 0.01):
                            await read(stream)
                            await asyncio.sleep(PATIENCE_S)
                else:
                    assert await asyncio.to_thread(text_of, llm, prompt) == wanted[prompt]

        async def main() -> None:
            await asyncio.gather(*(use(number) for number in range(16)))

        run(main())


def test_streams_of_several_loops(llm: LLM) -> None:
    wanted = text_of(llm, "hello")
    found: list[str] = []

    async def main() -> None:
        for _ in range(5):
            found.append(await read(llm.astream("hello", GREEDY)))

    threads = [threading.Thread(target=run, args=(main(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert found == [wanted] * 15
