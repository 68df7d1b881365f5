"""Streams that several threads read, and threads that read several streams."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from asyncio_streams import GREEDY, LONG, Gate, text_of
from patience import PATIENCE_S
from powerinfer import LLM


def test_a_thread_may_read_a_stream_that_another_thread_waits_for(llm: LLM) -> None:
    shared, own = llm.stream("hello", LONG), llm.stream("world", LONG)
    is_own_begun = threading.Event()
    pieces: list[str] = []

    def read_shared() -> None:
        assert is_own_begun.wait(PATIENCE_S)
        pieces.extend(shared)

    def read_own_and_shared() -> None:
        next(own)
        is_own_begun.set()
        pieces.extend(shared)

    # Daemons, so that a deadlock fails and does not hang.
    readers = [threading.Thread(target=f, daemon=True) for f in (read_shared, read_own_and_shared)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(10)
    assert not any(reader.is_alive() for reader in readers)
    assert sorted("".join(pieces)) == sorted(text_of(llm, "hello", LONG))
    assert next(own)


def test_threads_may_share_a_stream(llm: LLM) -> None:
    """Each piece goes to one of them."""
    stream = llm.stream("hello", LONG)
    with ThreadPoolExecutor(4) as pool:
        parts = [pool.submit(list, stream) for _ in range(4)]
        found = [piece for part in parts for piece in part.result(PATIENCE_S)]
    assert sorted("".join(found)) == sorted(text_of(llm, "hello", LONG))


def test_closing_waits_for_no_thread_that_waits_for_the_same_stream(llm: LLM) -> None:
    gate, stream = Gate(), llm.stream("hello", LONG)
    with ThreadPoolExecutor(2) as pool:
        holding = pool.submit(llm.generate, "world", gate.params())
        assert gate.reached.wait(PATIENCE_S)
        reading = pool.submit(list, stream)
        while not llm._engine._steps.num_waiting:
            gate.opened.wait(0.002)
        stream.close()
        assert reading.result(PATIENCE_S) == []
        gate.opened.set()
        assert holding.result(PATIENCE_S)


def test_one_thread_of_a_pool_may_read_two_streams(llm: LLM) -> None:
    wanted = text_of(llm, "hello", LONG), text_of(llm, "world")
    first, second = llm.stream("hello", LONG), llm.stream("world", GREEDY)
    with ThreadPoolExecutor(1) as pool:
        pieces = [pool.submit(next, first).result(PATIENCE_S)]
        others = [pool.submit(next, second).result(PATIENCE_S)]
        pieces += pool.submit(list, first).result(PATIENCE_S)
        others += pool.submit(list, second).result(PATIENCE_S)
    assert ("".join(pieces), "".join(others)) == wanted


def test_many_clients_in_asyncio_lose_nothing(llm: LLM) -> None:
    async def client() -> str:
        async with llm.astream("hello", GREEDY) as stream:
            return "".join([piece async for piece in stream])

    async def main() -> list[str]:
        return await asyncio.gather(*(client() for _ in range(12)))

    wanted = text_of(llm, "hello")
    assert asyncio.run(asyncio.wait_for(main(), PATIENCE_S)) == [wanted] * 12
