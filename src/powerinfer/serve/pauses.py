"""Detection of silence in streams."""

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

__all__ = ["or_pause"]

T = TypeVar("T")


async def or_pause(items: AsyncIterator[T], seconds: float) -> AsyncIterator[T | None]:
    """Yield the items of a stream, and None after every `seconds` of silence."""
    waiting: asyncio.Future[T] | None = None
    try:
        while True:
            if waiting is None:
                waiting = asyncio.ensure_future(anext(items))
            await asyncio.wait((waiting,), timeout=seconds)
            if not waiting.done():
                yield None
                continue
            try:
                item = waiting.result()
            except StopAsyncIteration:
                return
            finally:
                waiting = None
            yield item
    finally:
        if waiting is not None:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
