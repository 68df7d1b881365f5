"""Texts side by side, whoever asks for them: one call, one thread, many threads."""

import gc
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from patience import PATIENCE_S
from powerinfer import LLM, Generation, PowerInferError, SamplingParams, TextStream
from powerinfer.engine.engine import Engine
from powerinfer.models import Model

pytestmark = pytest.mark.usefixtures("little_to_collect")
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
LONG = replace(GREEDY, max_tokens=40)
# Longer than anything here takes: a deadlock fails and does not hang.


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
    """Until so many wait while another one computes."""
    stop = threading.Event()
    for _ in range(int(PATIENCE_S / 0.002)):
        if llm._engine._steps.num_waiting == count:
            return
        stop.wait(0.002)
    raise AssertionError("nobody waits")


class Gate:
    """A logits processor at which a step stands still until it is opened."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, _: object, logits: np.ndarray) -> np.ndarray:
        self.reached.set()
        # Ctrl-C just before a long wait would be noticed after it.
        assert any(self.opened.wait(0.01) for _ in range(int(PATIENCE_S / 0.01)))
        return logits

    def params(self) -> SamplingParams:
        return replace(GREEDY, logits_processors=[self])


def text_of(llm: LLM, prompt: str, params: SamplingParams = GREEDY) -> str:
    return llm.generate(prompt, params)[0].text


def idle_engine(llm: LLM) -> Engine:
    """After a step, in which those that were cancelled leave."""
    llm._engine.run_step()
    return llm._engine


@pytest.mark.parametrize("kernels", ["reference", None])
def test_prompts_of_one_call_give_what_each_gives_alone(tiny: Path, kernels: str | None) -> None:
    prompts = ["hello", "world", "a", "héllo wörld", "hello again and again"] * 3
    params = [
        SamplingParams(
            temperature=(0.0, 1.0)[number % 2],
            seed=number,
            max_tokens=1 + number % 13,
            n=1 + number % 3,
            logprobs=2,
            stop=["e"] if number % 4 == 0 else [],
        )
        for number in range(len(prompts))
    ]
    with LLM(tiny, kernels=kernels, parallel=4, threads=1) as llm, llm.share() as other:
        together = llm.generate(prompts, params)
        pairs = zip(prompts, params, strict=True)
        alone = [text for pair in pairs for text in other.generate(*pair)]
        assert [what_matters(each) for each in together] == [what_matters(each) for each in alone]
        idle_engine(llm).check_integrity()


def what_matters(generation: Generation) -> tuple[object, ...]:
    return (
        generation.text,
        generation.token_ids,
        generation.finish_reason,
        generation.seed,
        generation.logprobs,
    )


@pytest.mark.parametrize("max_tokens", [40, None])
@pytest.mark.parametrize("kv_tokens", [None, 512])
def test_one_thread_reads_many_streams_in_any_order(
    tiny: Path, max_tokens: int | None, kv_tokens: int | None
) -> None:
    """More than run at once: those that nobody reads go on, or the others would wait for ever."""
    params = replace(GREEDY, max_tokens=max_tokens)
    with LLM(tiny, parallel=2, context_length=64, kv_tokens=kv_tokens, threads=1) as llm:
        prompts = [f"hello {number}" for number in range(20)]
        wanted = [text_of(llm, prompt, params) for prompt in prompts]
        streams = {number: llm.stream(prompt, params) for number, prompt in enumerate(prompts)}
        found = dict.fromkeys(streams, "")
        random = np.random.default_rng(1)
        while streams:
            number = int(random.choice(sorted(streams)))
            piece = next(streams[number], None)
            if piece is None:
                del streams[number]
            else:
                found[number] += piece
        assert list(found.values()) == wanted
        idle_engine(llm).check_integrity()


def test_an_endless_stream_that_nobody_reads_ends_where_others_wait(tiny: Path) -> None:
    endless = replace(GREEDY, max_tokens=None)
    with LLM(tiny, parallel=1, context_length=32, context_shift=True, threads=1) as llm:
        first = llm.stream("hello", endless)
        next(first)
        assert text_of(llm, "world")
        with pytest.raises(PowerInferError, match="nobody read it"):
            for _ in first:
                pass


def test_a_stream_that_nobody_reads_pauses(llm: LLM) -> None:
    stream = llm.stream("hello", replace(GREEDY, max_tokens=100))
    next(stream)
    for _ in range(5):
        assert text_of(llm, "world", LONG)
    assert len(stream._handle.unread) == 32
    assert "".join(stream)
    assert len(stream.generation.token_ids) == 100


@pytest.mark.parametrize("how", ["close", "with", "drop", "error", "collect", "keep"])
def test_streams_left_unfinished_keep_nobody_waiting(llm: LLM, how: str) -> None:
    wanted = text_of(llm, "world")
    kept: list[TextStream] = []
    for _ in range(20):
        stream: TextStream | None = llm.stream("hello", LONG)
        assert stream is not None
        next(stream)
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
        elif how == "keep":
            kept.append(stream)
        else:
            stream = None
    gc.collect()
    assert text_of(llm, "world") == wanted
    stream = None
    engine = idle_engine(llm)
    if how != "keep":
        assert not engine.has_work
        engine.check_integrity()


def test_a_stream_of_a_thread_that_ended_can_be_read_on(llm: LLM) -> None:
    stream = llm.stream("hello", LONG)
    pieces = [in_thread(lambda: next(stream)).result(PATIENCE_S)]
    assert in_thread(lambda: text_of(llm, "world")).result(PATIENCE_S) == text_of(llm, "world")
    pieces += stream
    assert "".join(map(str, pieces)) == text_of(llm, "hello", LONG)


def test_streams_of_one_thread_do_not_end_each_other(llm: LLM) -> None:
    wanted = text_of(llm, "hello", LONG), text_of(llm, "world")
    first = llm.stream("hello", LONG)
    pieces = [next(first)]
    assert text_of(llm, "world") == wanted[1]
    second = llm.stream("world", GREEDY)
    others = [next(second)]
    assert llm.score("hello world")[0].num_tokens
    assert llm.new_sequence().extend([5, 6]).shape
    pieces += first
    others += second
    assert ("".join(pieces), "".join(others)) == wanted


def test_a_callers_texts_begin_in_the_order_of_asking(tiny: Path) -> None:
    with LLM(tiny, kernels="reference", parallel=1) as llm:
        gate, order = Gate(), list[int]()
        first = in_thread(lambda: llm.generate("hello", gate.params()))
        assert gate.reached.wait(PATIENCE_S)

        def ask(number: int) -> None:
            llm.generate("a", replace(GREEDY, logits_processors=[noting(order, number)]))

        futures = []
        for number in range(5):
            futures.append(in_thread(partial(ask, number)))
            wait_until_queued(llm, number + 1)
        gate.opened.set()
        for future in (first, *futures):
            future.result(PATIENCE_S)
        assert list(dict.fromkeys(order)) == [0, 1, 2, 3, 4]
        assert order == sorted(order)


def noting(order: list[int], number: int) -> Callable[..., np.ndarray]:
    def processor(_: object, logits: np.ndarray) -> np.ndarray:
        order.append(number)
        return logits

    return processor


def test_scores_wait_for_room_and_let_texts_go_on(tiny: Path) -> None:
    """A text without a limit is promised all there is, and pauses while nobody reads it."""
    with LLM(tiny, context_length=128, threads=1) as llm:
        wanted = llm.score("hello world"), text_of(llm, "hello", replace(GREEDY, max_tokens=None))
        stream = llm.stream("hello", replace(GREEDY, max_tokens=None))
        pieces = [next(stream)]
        assert llm.score("hello world") == wanted[0]
        pieces += stream
        assert "".join(pieces) == wanted[1]
        idle_engine(llm).check_integrity()


def test_logits_and_embeddings_take_no_place_of_a_text(tiny: Path) -> None:
    """A stream that runs beside them stays paused, and goes on."""
    with LLM(
        tiny, parallel=1, context_length=32, context_shift=True, kv_tokens=256, threads=1
    ) as llm:
        wanted = llm.logits("world"), llm.embed("world")
        stream = llm.stream("hello", replace(GREEDY, max_tokens=None))
        next(stream)
        num_unread = len(stream._handle.unread)
        for _ in range(20):
            np.testing.assert_array_equal(llm.logits("world"), wanted[0])
            np.testing.assert_array_equal(llm.embed("world"), wanted[1])
        assert len(stream._handle.unread) <= num_unread + 32
        for _ in range(40):
            next(stream)
        stream.close()


@pytest.mark.parametrize(("method", "step"), [("logits", "forward"), ("embed", "hidden_states")])
def test_ctrl_c_in_a_long_prompt_frees_everything_at_once(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, method: str, step: str
) -> None:
    with LLM(tiny, context_length=128, batch_size=16, threads=1) as llm:
        compute, num_calls = getattr(Model, step), 0

        def interrupted(*arguments: Any, **named: Any) -> Any:
            nonlocal num_calls
            num_calls += 1
            if num_calls == 3:
                raise KeyboardInterrupt
            return compute(*arguments, **named)

        monkeypatch.setattr(Model, step, interrupted)
        with pytest.raises(KeyboardInterrupt):
            getattr(llm, method)([5] * 100)
        assert num_calls == 3
        idle_engine(llm).check_integrity()


def test_closing_from_another_thread_ends_streams_and_those_who_wait(llm: LLM) -> None:
    stream, idle = llm.stream("hello", LONG), llm.stream("never begun", LONG)
    next(stream)
    gate = Gate()
    waiting = [in_thread(lambda: llm.generate("a", gate.params()))]
    assert gate.reached.wait(PATIENCE_S)
    waiting += [in_thread(lambda: text_of(llm, "world")) for _ in range(3)]
    wait_until_queued(llm, 3)
    closing = in_thread(llm.close)
    wait_until_closing(llm)
    gate.opened.set()
    closing.result(PATIENCE_S)
    for future in waiting:
        with pytest.raises(PowerInferError, match="the LLM was closed before this call finished"):
            future.result(PATIENCE_S)
    for each in (stream, idle):
        with pytest.raises(PowerInferError, match="the LLM was closed before this call finished"):
            next(each)
    llm.close()


def wait_until_closing(llm: LLM) -> None:
    stop, deadline = threading.Event(), time.monotonic() + PATIENCE_S
    while not llm._engine.is_closed:
        assert time.monotonic() < deadline
        stop.wait(0.002)


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


def press_ctrl_c(when: Callable[[], object]) -> "Future[object]":
    """Once something has happened, in the main thread."""

    def press() -> None:
        when()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    return in_thread(press)


def test_ctrl_c_ends_waiting(llm: LLM) -> None:
    """Pressed while another thread computes; the line is as it was."""
    gate = Gate()
    holder = in_thread(lambda: llm.generate("hello", gate.params()))
    assert gate.reached.wait(PATIENCE_S)
    presser = press_ctrl_c(lambda: wait_until_queued(llm))
    with pytest.raises(KeyboardInterrupt):
        text_of(llm, "world")
    presser.result(PATIENCE_S)
    assert llm._engine._steps.num_waiting == 0
    gate.opened.set()
    holder.result(PATIENCE_S)
    assert text_of(llm, "world")


def test_ctrl_c_in_a_step_of_several_streams_ends_the_one_that_led_it(tiny: Path) -> None:
    with LLM(tiny, threads=1) as llm:
        prompts = ["hello", "world", "a"]
        wanted = [text_of(llm, prompt, LONG) for prompt in prompts]
        gate = Gate()
        streams = [llm.stream(prompt, LONG) for prompt in prompts]
        pieces = [[next(stream)] for stream in streams]
        presser = press_ctrl_c(lambda: gate.reached.wait(PATIENCE_S))
        with pytest.raises(KeyboardInterrupt):
            llm.generate("hello", gate.params())
        presser.result(PATIENCE_S)
        for stream, found in zip(streams, pieces, strict=True):
            found += stream
        assert ["".join(found) for found in pieces] == wanted
        idle_engine(llm).check_integrity()


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
