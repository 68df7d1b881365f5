"""Streams that several threads read, and threads that read several streams."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from asyncio_streams import GREEDY, LONG, PATIENCE_S, text_of
from powerinfer import LLM, PowerInferError
from powerinfer.engine.turn import Caller
from powerinfer.engine.turns import Turns
from tiny_models import TINY_MODELS, write_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny.gguf", TINY_MODELS["llama"])


@pytest.fixture
def llm(tiny: Path) -> Iterator[LLM]:
    with LLM(tiny, kernels="reference") as opened:
        yield opened


def wait_until_queued(turns: Turns, count: int = 1) -> None:
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / 0.002)):
        if turns.num_waiting == count:
            return
        pause.wait(0.002)
    raise AssertionError("nobody waits")


def test_a_thread_may_read_a_stream_that_another_thread_waits_for(llm: LLM) -> None:
    """It has the turn by a stream of its own, which that ends: both would wait for ever."""
    shared, own = llm.stream("hello", LONG), llm.stream("world", LONG)
    is_own_begun = threading.Event()
    pieces: list[str] = []

    def read_shared() -> None:
        assert is_own_begun.wait(PATIENCE_S)
        pieces.extend(shared)

    def read_own_and_shared() -> None:
        next(own)
        is_own_begun.set()
        wait_until_queued(llm._turns)
        pieces.extend(shared)

    # Daemons, so that a deadlock fails and does not hang.
    readers = [threading.Thread(target=f, daemon=True) for f in (read_shared, read_own_and_shared)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(10)
    is_deadlock = any(reader.is_alive() for reader in readers)
    own.close()
    assert not is_deadlock
    assert sorted("".join(pieces)) == sorted(text_of(llm, "hello", LONG))


def test_threads_may_share_a_stream(llm: LLM) -> None:
    """Each piece goes to one of them."""
    stream = llm.stream("hello", LONG)
    with ThreadPoolExecutor(4) as pool:
        parts = [pool.submit(list, stream) for _ in range(4)]
        found = [piece for part in parts for piece in part.result(PATIENCE_S)]
    assert sorted("".join(found)) == sorted(text_of(llm, "hello", LONG))


def test_closing_waits_for_no_thread_that_waits_for_the_same_stream(llm: LLM) -> None:
    holding, stream = llm.stream("world", LONG), llm.stream("hello", LONG)
    next(holding)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(list, stream)
        wait_until_queued(llm._turns)
        stream.close()
        assert reading.result(PATIENCE_S) == []
    assert next(holding)


def test_one_thread_of_a_pool_that_reads_two_streams_is_told_what_to_do(llm: LLM) -> None:
    """Waiting would never end, as nobody else reads the first one; nothing is lost in silence."""
    wanted = text_of(llm, "world")
    first, second = llm.stream("hello", LONG), llm.stream("world", GREEDY)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(next, first).result(PATIENCE_S)
        pieces = [pool.submit(next, second).result(PATIENCE_S)]
        told = pytest.raises(PowerInferError, match=r"thread or task that read it.*with astream")
        with told:
            pool.submit(next, first).result(PATIENCE_S)
        assert "".join(pieces + pool.submit(list, second).result(PATIENCE_S)) == wanted
    assert first.generation.finish_reason == "cancelled"


def test_many_clients_in_asyncio_lose_nothing(llm: LLM) -> None:
    """What the message and the page tell those to do who read streams in the threads of a pool."""

    async def client() -> str:
        async with llm.astream("hello", GREEDY) as stream:
            return "".join([piece async for piece in stream])

    async def main() -> list[str]:
        return await asyncio.gather(*(client() for _ in range(12)))

    wanted = text_of(llm, "hello")
    assert asyncio.run(asyncio.wait_for(main(), PATIENCE_S)) == [wanted] * 12


def test_a_turn_that_is_dropped_while_it_computes_is_not_passed_on() -> None:
    """A destructor takes no lock, so it may come between two lines of whoever computes."""
    turns, has_other, go_on = Turns(), threading.Event(), threading.Event()
    turn = turns.open(iter(["a", "b"]))

    def other() -> None:
        with turns.taken():
            has_other.set()

    thread = threading.Thread(target=other, daemon=True)
    turns.wait(turn, Caller())
    with turns.piece(turn) as work:
        next(work)
        turn.is_dropped, turn.work = True, None  # what `drop` does if it saw no piece yet
        thread.start()
        wait_until_queued(turns)
        go_on.wait(0.15)
        assert not has_other.is_set()
    thread.join(PATIENCE_S)
    assert has_other.is_set()


def test_closing_again_and_again_keeps_nothing() -> None:
    turns = Turns()
    for _ in range(3):
        turns.close()
    assert turns._closing == []
