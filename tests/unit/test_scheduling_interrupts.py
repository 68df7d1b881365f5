"""Ctrl-C at any line of a step: every text goes on as if nothing had happened."""

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from functools import cache
from types import FrameType
from typing import Any

import pytest

from powerinfer import LLM, SamplingParams
from powerinfer.engine.scheduling.engine import Engine
from powerinfer.engine.scheduling.request import Output, Request
from powerinfer.engine.scheduling.ticket import Ticket
from scheduling_cases import all_alone, new_engine, text_of
from tiny_models import TINY_MODELS, write_model

FOLDERS = ("engine/scheduling", "engine/stop.py", "engine/sampler.py", "models/kv_cache.py")
REQUESTS = [
    Request(prompt_ids=range(10, 90), params=SamplingParams(seed=1, n=3, max_tokens=4, logprobs=1)),
    Request(prompt_ids=range(10, 80), params=SamplingParams(seed=3, max_tokens=6, stop=["a", "b"])),
    Request(
        prompt_ids=range(10, 80),
        params=SamplingParams(seed=3, max_tokens=2),
        prompt_logprobs=1,
        marks=[number % 9 > 2 for number in range(70)],
    ),
]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = tmp_path_factory.mktemp("models")
    with LLM(write_model(folder / "tiny.gguf", TINY_MODELS["llama-relu"])) as llm:
        yield llm


class _Interrupt:
    """Raises at the line number `at` that is executed in `FOLDERS`, counted from 0."""

    def __init__(self, at: int | None) -> None:
        self.at = at
        self.num_lines = 0

    @property
    def is_over(self) -> bool:
        """It was raised: what runs now need not be watched, which is slow."""
        return self.at is not None and self.num_lines > self.at

    def __call__(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "call":
            return self if _is_watched(frame.f_code.co_filename) else None
        if event == "line":
            if self.num_lines == self.at:
                self.num_lines += 1
                raise KeyboardInterrupt
            self.num_lines += 1
        return self


@cache
def _is_watched(name: str) -> bool:
    return any(folder in name for folder in FOLDERS)


def _run(engine: Engine, interrupt: _Interrupt) -> list[Ticket]:
    tickets = [engine.submit(request) for request in REQUESTS]
    before = sys.gettrace()
    while engine.has_work:
        if interrupt.is_over:
            engine.run_step()
            continue
        sys.settrace(interrupt)
        try:
            engine.run_step()
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
    return tickets


@pytest.mark.slow
@pytest.mark.parametrize("is_slicing", [False, True])
def test_ctrl_c_at_any_line_changes_no_text(llm: LLM, is_slicing: bool) -> None:
    counting = _Interrupt(None)
    _run(new_engine(llm, is_slicing=is_slicing, kv_tokens=512, batch_size=48), counting)
    expected = [all_alone(llm.loaded, request) for request in REQUESTS]
    assert counting.num_lines > 1000
    # All of them take minutes.
    for at in range(0, counting.num_lines, 211):
        engine = new_engine(llm, is_slicing=is_slicing, kv_tokens=512, batch_size=48)
        interrupt = _Interrupt(at)
        tickets = _run(engine, interrupt)
        assert interrupt.num_lines > at
        engine.check_integrity()
        for ticket, texts in zip(tickets, expected, strict=True):
            found = [
                text_of(output for output in ticket.unread if output.index == index)
                for index in range(ticket.request.params.n)
            ]
            assert found == texts, at
            assert ticket.is_over


class _InterruptedReader(deque[Output]):
    """Unread outputs; Ctrl-C comes right behind each one that is handed over."""

    def __init__(self, *, reads_at_once: bool) -> None:
        super().__init__()
        self.found: list[Output] = []
        self._reads_at_once = reads_at_once

    def extend(self, outputs: Iterable[Output]) -> None:
        handed_over = list(outputs)
        self.found += handed_over
        if not self._reads_at_once:
            super().extend(handed_over)
        raise KeyboardInterrupt


@pytest.mark.parametrize("reads_at_once", [False, True])
def test_no_output_comes_twice(llm: LLM, reads_at_once: bool) -> None:
    """A reader in another thread may have taken it before the interrupt is noticed."""
    engine = new_engine(llm, kv_tokens=512, batch_size=48)
    request = REQUESTS[1]
    ticket = engine.submit(request)
    ticket.unread = reader = _InterruptedReader(reads_at_once=reads_at_once)
    num_interrupts = 0
    for _ in range(20):  # steps, more than enough
        try:
            engine.run_step()
        except KeyboardInterrupt:
            num_interrupts += 1
    assert not engine.has_work
    assert num_interrupts == len(reader.found) > 1
    assert list(reader) == ([] if reads_at_once else reader.found)
    assert [text_of(reader.found)] == all_alone(llm.loaded, request)
    engine.check_integrity()
