"""Ctrl-C at any line of a step: every text goes on as if nothing had happened."""

import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from types import FrameType
from typing import Any

import numpy as np
import pytest

from forced_drafts import ask_draft_model, force_drafts
from powerinfer import LLM, SamplingParams
from powerinfer.engine.engine import Engine
from powerinfer.engine.request import Output, PromptRows, Request, RequestHandle
from powerinfer.kvcache.kv_cache import BLOCK_SIZE
from scheduling_cases import WholeText, all_alone, new_engine, text_of
from tiny_models import TINY_MODELS, write_model

FOLDERS = ("powerinfer/engine/", "sampling/stop.py", "sampling/sampler.py", "powerinfer/kvcache/")
BEGINNING = ("engine/queue.py", "powerinfer/kvcache/")
MOST_STEPS = 200  # far more than any of the requests takes
REQUESTS = [
    Request(prompt_ids=range(10, 90), params=SamplingParams(seed=1, n=3, max_tokens=4, logprobs=1)),
    Request(prompt_ids=range(10, 80), params=SamplingParams(seed=3, max_tokens=6, stop=["a", "b"])),
    Request(
        prompt_ids=range(10, 90),
        params=SamplingParams(seed=2, n=2, max_tokens=2),
        snapshot_positions=(40, 72),
    ),
    Request(
        prompt_ids=range(10, 80),
        params=SamplingParams(seed=3, max_tokens=2),
        prompt_logprobs=1,
        is_prompt=[number % 9 > 2 for number in range(70)],
    ),
    *(
        Request(
            prompt_ids=range(20, 90),
            params=SamplingParams(seed=1, max_tokens=0),
            prompt_rows=kind,
            num_rows=60,
            reuses_prefix=False,
        )
        for kind in PromptRows
    ),
]


@pytest.fixture(scope="module", params=["llama-relu", "lfm2"])
def llm(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[LLM]:
    folder = tmp_path_factory.mktemp("models")
    with LLM(write_model(folder / "tiny.gguf", TINY_MODELS[request.param])) as llm:
        yield llm


class _Interrupt:
    """Raises at the line number `at` that is executed in some files, counted from 0."""

    def __init__(self, at: int | None, names: tuple[str, ...] = FOLDERS) -> None:
        self.at = at
        self.num_lines = 0
        self._names = names

    @property
    def is_over(self) -> bool:
        """It was raised: what runs now need not be watched, which is slow."""
        return self.at is not None and self.num_lines > self.at

    def __call__(self, frame: FrameType, event: str, _argument: object) -> Any:
        if event == "call":
            return self if _is_in(frame.f_code.co_filename, self._names) else None
        if event == "line":
            if self.num_lines == self.at:
                self.num_lines += 1
                raise KeyboardInterrupt
            self.num_lines += 1
        return self


@cache
def _is_in(name: str, parts: tuple[str, ...]) -> bool:
    return any(part in name for part in parts)


def _run(
    engine: Engine, interrupt: _Interrupt, requests: Sequence[Request] = REQUESTS
) -> list[RequestHandle]:
    handles = [engine.submit(request) for request in requests]
    before = sys.gettrace()
    for _ in range(MOST_STEPS):
        if not engine.has_work:
            break
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
    assert not engine.has_work
    return handles


def _texts_of(handle: RequestHandle) -> list[WholeText]:
    return [
        text_of(output for output in handle.unread if output.index == index)
        for index in range(handle.request.params.n)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("is_slicing", [False, True])
def test_ctrl_c_at_any_line_changes_no_text(llm: LLM, is_slicing: bool) -> None:
    counting = _Interrupt(None)
    whole = _run(new_engine(llm, is_slicing=is_slicing, kv_tokens=512, batch_size=48), counting)
    expected = [all_alone(llm.loaded, request) for request in REQUESTS]
    assert counting.num_lines > 1000
    # All of them take minutes.
    for at in range(0, counting.num_lines, 401):
        engine = new_engine(llm, is_slicing=is_slicing, kv_tokens=512, batch_size=48)
        interrupt = _Interrupt(at)
        handles = _run(engine, interrupt)
        assert interrupt.num_lines > at
        engine.check_integrity()
        assert [_texts_of(handle) for handle in handles] == expected, at
        assert all(handle.is_over for handle in handles)
        for handle, uninterrupted in zip(handles, whole, strict=True):
            np.testing.assert_array_equal(handle.prompt_rows, uninterrupted.prompt_rows)


@pytest.mark.parametrize("manner", ["right", "half"])
def test_ctrl_c_between_the_rows_of_drafts_changes_no_text(llm: LLM, manner: str) -> None:
    requests = [
        Request(prompt_ids=range(10, 30), params=SamplingParams(seed=1, max_tokens=9, logprobs=1)),
        Request(prompt_ids=range(30, 72), params=SamplingParams(seed=2, max_tokens=7)),
    ]
    expected = [all_alone(llm.loaded, request) for request in requests]
    answers = {id(request): texts for request, texts in zip(requests, expected, strict=True)}
    names = ("engine/drafts/", "engine/text.py", "engine/engine.py", "powerinfer/kvcache/")
    counting = _Interrupt(None, names)
    for at in (None, *range(0, 3000, 97)):
        engine = new_engine(llm, kv_tokens=512)
        force_drafts(engine, answers, manner)
        interrupt = counting if at is None else _Interrupt(at, names)
        if counting.num_lines <= (at or -1):
            break
        handles = _run(engine, interrupt, requests)
        engine.check_integrity()
        assert [_texts_of(handle) for handle in handles] == expected, at


def test_ctrl_c_while_a_draft_model_reads_and_guesses_changes_no_text(llm: LLM) -> None:
    params = SamplingParams(temperature=0, seed=1, max_tokens=9, logprobs=1)
    requests = [Request(prompt_ids=range(10, end), params=params) for end in (90, 50)]
    expected = [all_alone(llm.loaded, request) for request in requests]
    names = ("engine/drafts/", "powerinfer/kvcache/")
    counting = _Interrupt(None, names)
    with LLM(threads=1) as other:
        # It knows other texts, and is wrong; llama-relu is right.
        draft = other.loaded if llm.loaded.model.config.state_mixers else llm.loaded
        draft = replace(draft, options=replace(draft.options, kv_tokens=512))
        for at in (None, *range(0, 4000, 97)):
            engine = Engine(replace(new_engine(llm, kv_tokens=512)._loaded, draft=draft))
            ask_draft_model(engine)
            interrupt = counting if at is None else _Interrupt(at, names)
            if counting.num_lines <= (at or -1):
                break
            handles = _run(engine, interrupt, requests)
            engine.check_integrity()
            assert [_texts_of(handle) for handle in handles] == expected, at
            assert at is not None or sum(handle.metrics().num_drafted for handle in handles) > 5
            draft_model = engine._drafts._model
            assert draft_model is not None
            draft_model.sweep()
            cache = draft_model._model._cache
            cache.check_integrity()
            assert cache.num_used_blocks == 0, at


@pytest.mark.parametrize(("num_prompt", "num_blocks"), [(10, 1), (BLOCK_SIZE + 10, 2)])
def test_ctrl_c_while_a_text_begins_leaves_its_room_to_it(
    llm: LLM, num_prompt: int, num_blocks: int
) -> None:
    """The only blocks there are may not stay promised to a text that could then never begin."""
    kv_tokens = num_blocks * BLOCK_SIZE
    prompt = range(10, 10 + num_prompt)
    requests = [
        Request(prompt_ids=prompt, params=SamplingParams(seed=1, n=n, max_tokens=2))
        for n in (1, 1 + num_blocks)
    ]
    counting = _Interrupt(None, BEGINNING)
    _run(new_engine(llm, kv_tokens=kv_tokens), counting, requests)
    expected = [all_alone(llm.loaded, request) for request in requests]
    assert counting.num_lines > 500
    # States take further lines, and most of all are the same.
    for at in range(0, counting.num_lines, 11 if llm.loaded.model.config.state_mixers else 3):
        engine = new_engine(llm, kv_tokens=kv_tokens)
        handles = _run(engine, _Interrupt(at, BEGINNING), requests)
        engine.check_integrity()
        assert [_texts_of(handle) for handle in handles] == expected, at


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
    handle = engine.submit(request)
    handle.unread = reader = _InterruptedReader(reads_at_once=reads_at_once)
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
