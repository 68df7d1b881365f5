"""Reads texts in asyncio, for the tests of streams."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from dataclasses import replace

from patience import PATIENCE_S
from powerinfer import LLM, AsyncTextStream, SamplingParams
from powerinfer.values import FloatArray

__all__ = [
    "GREEDY",
    "LONG",
    "Gate",
    "anext_of",
    "read",
    "run",
    "text_of",
    "until",
]

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
LONG = replace(GREEDY, max_tokens=40)


def run(main: Coroutine[object, object, None]) -> None:
    """As a program would, with an end to patience."""
    asyncio.run(asyncio.wait_for(main, PATIENCE_S))


def text_of(llm: LLM, prompt: str, params: SamplingParams = GREEDY) -> str:
    return llm.generate(prompt, params)[0].text


class Gate:
    """A logits processor at which a step stands still until it is opened."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, _: object, logits: FloatArray) -> FloatArray:
        self.reached.set()
        assert self.opened.wait(PATIENCE_S)
        return logits

    def params(self, params: SamplingParams = GREEDY) -> SamplingParams:
        return replace(params, logits_processors=[self])


async def read(stream: AsyncTextStream) -> str:
    return "".join([piece async for piece in stream])


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def anext_of(stream: AsyncTextStream) -> str:
    """`anext` as a coroutine; its task stays the one that reads the stream."""
    return await anext(stream)
