"""Reads texts in asyncio, for the tests of streams."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace

from powerinfer import LLM, AsyncTextStream, SamplingParams

__all__ = [
    "GREEDY",
    "LONG",
    "PATIENCE_S",
    "anext_of",
    "queued",
    "read",
    "run",
    "text_of",
    "until",
]

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
LONG = replace(GREEDY, max_tokens=40)
PATIENCE_S = 60.0


def run(main: Coroutine[object, object, None]) -> None:
    """As a program would, with an end to patience."""
    asyncio.run(asyncio.wait_for(main, PATIENCE_S))


def text_of(llm: LLM, prompt: str, params: SamplingParams = GREEDY) -> str:
    return llm.generate(prompt, params)[0].text


async def read(stream: AsyncTextStream) -> str:
    return "".join([piece async for piece in stream])


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def queued(llm: LLM, count: int) -> Callable[[], bool]:
    return lambda: llm._turns.num_waiting == count


async def anext_of(stream: AsyncTextStream) -> str:
    """`anext` as a coroutine; its task stays the one that reads the stream."""
    return await anext(stream)
