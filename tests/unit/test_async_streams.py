"""Streams for asyncio: the loop stays free, tasks wait for each other and for threads."""

import asyncio
import gc
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from asyncio_streams import GREEDY, LONG, PATIENCE_S, anext_of, queued, read, run, text_of, until
from powerinfer import LLM, AsyncTextStream, PowerInferError, SamplingParams
from powerinfer.values import FloatArray
from tiny_models import TINY_MODELS, write_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny.gguf", TINY_MODELS["llama"])


@pytest.fixture
def llm(tiny: Path) -> Iterator[LLM]:
    with LLM(tiny, kernels="reference") as opened:
        yield opened


class Gate:
    """A logits processor at which a generation stands still until it is opened."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, _: object, logits: FloatArray) -> FloatArray:
        self.reached.set()
        assert self.opened.wait(PATIENCE_S)
        return logits

    def params(self, params: SamplingParams = GREEDY) -> SamplingParams:
        return replace(params, logits_processors=[self])


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


def test_tasks_wait_for_each_other_in_order(llm: LLM) -> None:
    prompts = ["hello", "world", "a", "héllo wörld"] * 10

    async def main() -> None:
        found = await asyncio.gather(*(read(llm.astream(prompt, GREEDY)) for prompt in prompts))
        assert found == wanted

    wanted = [text_of(llm, prompt) for prompt in prompts]
    run(main())


def test_in_one_task_a_second_stream_ends_the_first(llm: LLM) -> None:
    async def main() -> None:
        first = llm.astream("hello", LONG)
        await anext(first)
        assert await read(llm.astream("world", GREEDY)) == wanted
        with pytest.raises(PowerInferError, match="another call to the same LLM"):
            await anext(first)

    wanted = text_of(llm, "world")
    run(main())


def test_a_call_that_stops_the_loop_ends_its_stream(llm: LLM) -> None:
    """Waiting would never end: the task that reads the stream stands still as well."""

    async def main() -> None:
        has_begun, go_on = asyncio.Event(), asyncio.Event()

        async def hold() -> None:
            stream = llm.astream("hello", LONG)
            await anext(stream)
            has_begun.set()
            await go_on.wait()
            with pytest.raises(PowerInferError, match="another call to the same LLM"):
                await anext(stream)

        holding = asyncio.create_task(hold())
        await has_begun.wait()
        waiting = asyncio.create_task(read(llm.astream("a", GREEDY)))
        await until(queued(llm, 1))
        # A task has the turn, another one is next: neither could go on.
        assert text_of(llm, "world") == wanted
        go_on.set()
        await holding
        assert await waiting == text

    wanted, text = text_of(llm, "world"), text_of(llm, "a")
    run(main())


def test_a_call_that_stops_the_loop_waits_for_the_piece_in_progress(llm: LLM) -> None:
    async def main() -> None:
        gate = Gate()
        reading = asyncio.create_task(read(llm.astream("hello", gate.params())))
        await until(gate.reached.is_set)
        opener = threading.Timer(0.01, gate.opened.set)
        opener.start()
        assert text_of(llm, "world") == wanted
        opener.join()
        with pytest.raises(PowerInferError, match="another call to the same LLM"):
            await reading

    wanted = text_of(llm, "world")
    run(main())


@pytest.mark.parametrize("when", ["computing", "waiting", "between"])
def test_cancelling_a_task_ends_its_text_and_gives_the_turn_back(llm: LLM, when: str) -> None:
    async def main() -> None:
        gate, stream = Gate(), llm.astream("hello", LONG)
        task = asyncio.create_task(read(llm.astream("hello", gate.params(LONG))))
        await until(gate.reached.is_set)
        if when == "waiting":
            task, first = asyncio.create_task(read(stream)), task
            await until(queued(llm, 1))
        elif when == "between":
            gate.opened.set()
            await task
            task = asyncio.create_task(first_piece_and_sleep(stream))
            await until(lambda: stream.generation.text != "")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.opened.set()
        if when == "waiting":
            assert await first == text_of_hello
        assert await read(llm.astream("world", GREEDY)) == wanted

    wanted, text_of_hello = text_of(llm, "world"), text_of(llm, "hello", LONG)
    run(main())


async def first_piece_and_sleep(stream: AsyncTextStream) -> str:
    async with stream:
        piece = await anext(stream)
        await asyncio.sleep(PATIENCE_S)
        return piece


def test_a_task_that_ends_without_closing_blocks_nobody(llm: LLM) -> None:
    async def main() -> None:
        kept = llm.astream("hello", LONG)
        await asyncio.create_task(anext_of(kept))
        assert await read(llm.astream("world", GREEDY)) == wanted
        with pytest.raises(PowerInferError, match="thread or task that read it has ended"):
            await anext(kept)

    wanted = text_of(llm, "world")
    run(main())


def test_a_stream_that_is_forgotten_blocks_nobody(llm: LLM) -> None:
    async def main() -> None:
        async for _ in llm.astream("hello", LONG):
            break
        assert await asyncio.create_task(read(llm.astream("world", GREEDY))) == wanted

    wanted = text_of(llm, "world")
    run(main())
    gc.collect()
