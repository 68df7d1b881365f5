"""Streams for asyncio: the loop stays free, tasks and threads go on side by side."""

import asyncio
import gc
import threading

import pytest

from asyncio_streams import GREEDY, LONG, Gate, anext_of, read, run, text_of, until
from patience import PATIENCE_S
from powerinfer import LLM, AsyncTextStream


def test_pieces_and_result_are_those_of_a_stream(llm: LLM) -> None:
    async def main() -> None:
        async with llm.astream("héllo", GREEDY) as stream:
            assert [piece async for piece in stream] == pieces
        assert stream.generation.text == "".join(pieces)
        assert stream.generation.finish_reason == "length"
        assert await read(stream) == ""

    pieces = list(llm.stream("héllo", GREEDY))
    run(main())


def test_the_loop_is_free_while_a_piece_is_computed(llm: LLM) -> None:
    async def main() -> None:
        gate = Gate()
        reading = asyncio.create_task(read(llm.astream("hello", gate.params())))
        # That the loop comes here at all, and opens the gate, is what is tested.
        await until(gate.reached.is_set)
        gate.opened.set()
        assert await reading == wanted

    wanted = text_of(llm, "hello")
    run(main())


def test_more_tasks_than_texts_that_run_at_once(llm: LLM) -> None:
    prompts = ["hello", "world", "a", "héllo wörld"] * 10

    async def main() -> None:
        found = await asyncio.gather(*(read(llm.astream(prompt, GREEDY)) for prompt in prompts))
        assert found == wanted

    wanted = [text_of(llm, prompt) for prompt in prompts]
    run(main())


def test_streams_of_one_task_go_on_side_by_side(llm: LLM) -> None:
    async def main() -> None:
        first = llm.astream("hello", LONG)
        pieces = [await anext(first)]
        assert await read(llm.astream("world", GREEDY)) == wanted
        assert "".join(pieces + [piece async for piece in first]) == long_text

    wanted, long_text = text_of(llm, "world"), text_of(llm, "hello", LONG)
    run(main())


def test_a_call_that_stops_the_loop_ends_no_stream(llm: LLM) -> None:
    async def main() -> None:
        stream = llm.astream("hello", LONG)
        pieces = [await anext(stream)]
        waiting = asyncio.create_task(read(llm.astream("a", GREEDY)))
        await asyncio.sleep(0)
        # The loop stands still, and neither stream is read.
        assert text_of(llm, "world") == wanted
        assert "".join(pieces + [piece async for piece in stream]) == long_text
        assert await waiting == text

    wanted, text, long_text = (
        text_of(llm, "world"),
        text_of(llm, "a"),
        text_of(llm, "hello", LONG),
    )
    run(main())


def test_a_call_that_stops_the_loop_waits_for_the_step_in_progress(llm: LLM) -> None:
    async def main() -> None:
        gate = Gate()
        reading = asyncio.create_task(read(llm.astream("hello", gate.params())))
        await until(gate.reached.is_set)
        opener = threading.Timer(0.01, gate.opened.set)
        opener.start()
        assert text_of(llm, "world") == wanted
        opener.join()
        assert await reading == text

    wanted, text = text_of(llm, "world"), text_of(llm, "hello")
    run(main())


def num_leaders() -> int:
    return [thread.name for thread in threading.enumerate()].count("powerinfer")


def test_one_thread_computes_for_all_tasks_and_goes(llm: LLM) -> None:
    async def main() -> None:
        gate = Gate()
        first = asyncio.create_task(read(llm.astream("hello", gate.params())))
        await until(gate.reached.is_set)
        others = [asyncio.create_task(read(llm.astream("world", GREEDY))) for _ in range(40)]
        await asyncio.sleep(0.01)
        assert num_leaders() == 1
        gate.opened.set()
        assert await asyncio.gather(*others) == [wanted] * 40
        await first
        await until(lambda: not num_leaders())

    wanted = text_of(llm, "world")
    run(main())


@pytest.mark.parametrize("when", ["computing", "waiting", "between"])
def test_cancelling_a_task_ends_its_text_alone(llm: LLM, when: str) -> None:
    async def main() -> None:
        gate, stream = Gate(), llm.astream("hello", LONG)
        first = asyncio.create_task(read(llm.astream("hello", gate.params(LONG))))
        await until(gate.reached.is_set)
        task = first
        if when == "waiting":
            task = asyncio.create_task(read(stream))
            await asyncio.sleep(0.01)
        elif when == "between":
            gate.opened.set()
            await first
            task = asyncio.create_task(first_piece_and_sleep(stream))
            await until(lambda: stream.generation.text != "")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.opened.set()
        if when == "waiting":
            assert await first == text_of_hello
            assert stream.generation.finish_reason == "cancelled"
        assert await read(llm.astream("world", GREEDY)) == wanted
        assert not llm._engine.has_work

    wanted, text_of_hello = text_of(llm, "world"), text_of(llm, "hello", LONG)
    run(main())


async def first_piece_and_sleep(stream: AsyncTextStream) -> str:
    async with stream:
        piece = await anext(stream)
        await asyncio.sleep(PATIENCE_S)
        return piece


def test_a_stream_of_a_task_that_ended_can_be_read_on(llm: LLM) -> None:
    async def main() -> None:
        kept = llm.astream("hello", LONG)
        pieces = [await asyncio.create_task(anext_of(kept))]
        assert await read(llm.astream("world", GREEDY)) == wanted
        assert "".join(pieces + [piece async for piece in kept]) == text

    wanted, text = text_of(llm, "world"), text_of(llm, "hello", LONG)
    run(main())


def test_a_stream_that_is_forgotten_blocks_nobody(llm: LLM) -> None:
    async def main() -> None:
        async for _ in llm.astream("hello", LONG):
            break
        assert await asyncio.create_task(read(llm.astream("world", GREEDY))) == wanted

    wanted = text_of(llm, "world")
    run(main())
    gc.collect()
