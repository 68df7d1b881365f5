"""Noticing that a stream says nothing for a while."""

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

__all__ = ["or_pause"]

T = TypeVar("T")


async def or_pause(items: AsyncIterator[T], seconds: float) -> AsyncIterator[T | None]:
    """The items of a stream, and None each time that none came for so many seconds."""
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
