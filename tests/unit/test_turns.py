"""Whose turn it is to use a model: threads wait, the same thread does not wait for itself."""

import gc
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from powerinfer import LLM, PowerInferError, SamplingParams, TextStream
from powerinfer.engine.turn import Caller
from powerinfer.engine.turns import Turns
from tiny_models import TINY_MODELS, write_model

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
LONG = replace(GREEDY, max_tokens=40)
# Longer than anything here takes: a deadlock fails and does not hang.
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("models") / "tiny.gguf", TINY_MODELS["llama"])


@pytest.fixture
def llm(tiny: Path) -> Iterator[LLM]:
    with LLM(tiny, kernels="reference") as opened:
        yield opened


def in_thread(work: Callable[[], object]) -> "Future[object]":
    """Run something in a thread of its own, which is gone when the result is there."""
    future: Future[object] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001
            future.set_exception(error)

    thread = threading.Thread(target=run)
    thread.start()
    return future


def wait_until_queued(llm: LLM, count: int = 1) -> None:
    """Until so many wait for their turn."""
    stop = threading.Event()
    for _ in range(int(PATIENCE_S / 0.002)):
        if llm._turns.num_waiting == count:
            return
        stop.wait(0.002)
    raise AssertionError("nobody waits")


def text_of(llm: LLM, prompt: str, params: SamplingParams = GREEDY) -> str:
    return llm.generate(prompt, params)[0].text


def test_a_second_thread_waits_for_the_stream_of_the_first(llm: LLM) -> None:
    wanted = text_of(llm, "hello", LONG), text_of(llm, "world")
    stream = llm.stream("hello", LONG)
    pieces = [next(stream)]
    other = in_thread(lambda: text_of(llm, "world"))
    wait_until_queued(llm)
    pieces += stream
    assert ("".join(pieces), other.result(PATIENCE_S)) == wanted


@pytest.mark.parametrize("how", ["close", "with", "drop", "error", "collect"])
def test_a_stream_left_unfinished_gives_the_turn_back(llm: LLM, how: str) -> None:
    stream: TextStream | None = llm.stream("hello", LONG)
    assert stream is not None
    next(stream)
    other = in_thread(lambda: text_of(llm, "world"))
    wait_until_queued(llm)
    if how == "close":
        stream.close()
    elif how == "with":
        with stream:
            pass
    elif how == "error":
        with pytest.raises(ZeroDivisionError), stream:
            raise ZeroDivisionError
    elif how == "collect":
        circle: list[object] = [stream]
        circle.append(circle)
        stream = circle = None  # type: ignore[assignment]
        gc.collect()
    else:
        stream = None
    assert other.result(PATIENCE_S) == text_of(llm, "world")


def test_a_thread_that_ends_without_closing_blocks_nobody(llm: LLM) -> None:
    kept: list[TextStream] = [llm.stream("hello", LONG)]
    in_thread(lambda: next(kept[0])).result(PATIENCE_S)
    assert in_thread(lambda: text_of(llm, "world")).result(PATIENCE_S) == text_of(llm, "world")
    with pytest.raises(PowerInferError, match="the thread or task that read it has ended"):
        next(kept[0])
    assert kept[0].generation.finish_reason == "cancelled"


def test_a_stream_belongs_to_the_thread_that_reads_it(llm: LLM) -> None:
    """The first thread is gone; the one that reads on is not."""
    stream = llm.stream("hello", LONG)
    pieces = [in_thread(lambda: next(stream)).result(PATIENCE_S)]
    pieces.append(next(stream))
    other = in_thread(lambda: text_of(llm, "world"))
    wait_until_queued(llm)
    pieces += stream
    assert "".join(map(str, pieces)) == text_of(llm, "hello", LONG)
    other.result(PATIENCE_S)


def test_in_one_thread_a_second_text_ends_the_first(llm: LLM) -> None:
    wanted = text_of(llm, "world")
    for begin in (
        text_of,
        lambda *a: next(llm.stream(a[1], GREEDY)),
        lambda *_: llm.new_sequence(),
    ):
        stream = llm.stream("hello", LONG)
        next(stream)
        begin(llm, "world")
        with pytest.raises(PowerInferError, match=r"another call to the same LLM.*share\(\)"):
            next(stream)
    assert text_of(llm, "world") == wanted


def test_turns_are_given_in_the_order_of_asking(llm: LLM) -> None:
    stream = llm.stream("hello", LONG)
    next(stream)
    order: list[int] = []

    def ask(number: int) -> None:
        llm.generate("a", replace(GREEDY, logits_processors=[noting(order, number)]))

    futures = []
    for number in range(5):
        futures.append(in_thread(partial(ask, number)))
        wait_until_queued(llm, number + 1)
    stream.close()
    for future in futures:
        future.result(PATIENCE_S)
    assert list(dict.fromkeys(order)) == [0, 1, 2, 3, 4]
    assert order == sorted(order)


def noting(order: list[int], number: int) -> Callable[..., np.ndarray]:
    def processor(_: object, logits: np.ndarray) -> np.ndarray:
        order.append(number)
        return logits

    return processor


def test_closing_from_another_thread_ends_streams_and_those_who_wait(llm: LLM) -> None:
    stream, idle = llm.stream("hello", LONG), llm.stream("never begun", LONG)
    next(stream)
    waiting = [in_thread(lambda: text_of(llm, "world")) for _ in range(3)]
    wait_until_queued(llm, 3)
    in_thread(llm.close).result(PATIENCE_S)
    for future in waiting:
        with pytest.raises(PowerInferError, match="the LLM was closed before this call finished"):
            future.result(PATIENCE_S)
    for each in (stream, idle):
        with pytest.raises(PowerInferError, match="the LLM was closed before this call finished"):
            next(each)
    llm.close()


def test_closing_ends_a_call_of_another_thread_after_its_piece(llm: LLM) -> None:
    """That call computes a text that would last longer than the test has patience for."""
    has_begun = threading.Event()

    def processor(_: object, logits: np.ndarray) -> np.ndarray:
        has_begun.set()
        return logits

    endless = replace(GREEDY, max_tokens=None, logits_processors=[processor])
    shifting = LLM(llm.loaded.path, kernels="reference", context_shift=True)
    future = in_thread(lambda: shifting.generate("hello", endless))
    assert has_begun.wait(PATIENCE_S)
    shifting.close()
    with pytest.raises(PowerInferError, match="the LLM was closed before this call finished"):
        future.result(PATIENCE_S)


def test_a_function_that_the_model_calls_may_not_use_it(llm: LLM) -> None:
    stream = llm.stream("hello", GREEDY)
    uses: list[Callable[[], object]] = [
        lambda: text_of(llm, "a"),
        llm.close,
        llm.new_sequence,
        lambda: next(stream),
    ]
    for use in uses:

        def processor(_: object, logits: np.ndarray, use: Callable[[], object] = use) -> np.ndarray:
            use()
            return logits

        stream = llm.stream("hello", replace(GREEDY, logits_processors=[processor]))
        with pytest.raises(PowerInferError, match="callbacks must not use that LLM"):
            next(stream)
        assert text_of(llm, "hello")


def test_ctrl_c_ends_waiting(llm: LLM) -> None:
    """Pressed while the main thread waits for its turn; the queue is as it was."""
    begun, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with llm.stream("hello", LONG) as stream:
            next(stream)
            begun.set()
            go_on.wait(PATIENCE_S)

    holder = in_thread(hold)
    assert begun.wait(PATIENCE_S)

    def press() -> None:
        wait_until_queued(llm)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    presser = in_thread(press)
    with pytest.raises(KeyboardInterrupt):
        text_of(llm, "world")
    presser.result(PATIENCE_S)
    assert llm._turns.num_waiting == 0
    go_on.set()
    holder.result(PATIENCE_S)
    assert text_of(llm, "world")


def test_many_threads_with_every_manner_of_leaving(tiny: Path) -> None:
    """Every text is that of the model alone, whatever others do with their streams."""
    with LLM(tiny, threads=2) as llm:
        prompts = ["hello", "world", "a", "héllo wörld"]
        wanted = {prompt: text_of(llm, prompt) for prompt in prompts}

        def use(number: int) -> None:
            random = np.random.default_rng(number)
            for _ in range(8):
                prompt = prompts[random.integers(4)]
                manner = random.integers(5)
                if manner == 0:
                    assert text_of(llm, prompt) == wanted[prompt]
                elif manner == 1:
                    assert "".join(llm.stream(prompt, GREEDY)) == wanted[prompt]
                elif manner == 2:
                    assert wanted[prompt].startswith(next(llm.stream(prompt, GREEDY)))
                elif manner == 3:
                    with llm.stream(prompt, GREEDY) as stream:
                        assert wanted[prompt].startswith(next(stream) + next(stream))
                else:
                    left = llm.stream(prompt, GREEDY)
                    next(left)
                    assert text_of(llm, prompt) == wanted[prompt]

        with ThreadPoolExecutor(8) as pool:
            for future in [pool.submit(use, number) for number in range(16)]:
                future.result(PATIENCE_S)


def test_a_dropped_turn_is_found_even_if_the_lock_was_held() -> None:
    """A destructor may run while its own thread holds the lock; whoever waits looks again."""
    turns = Turns()
    turn = turns.open(iter(["a", "b"]))
    turns.wait(turn, Caller())
    with turns.piece(turn) as work:
        next(work)
    with turns._lock:
        turns.drop(turn)
    with turns.taken():
        assert turn.is_over
