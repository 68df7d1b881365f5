"""ARCHITECTURE.md names every file that a token passes: checked against the stack of a decode step.

A file is on the path if it is on the stack while a call into the C++ extension runs. What else is
on the stack while a GPU kernel is launched is listed apart; everything else that is executed is a
helper.
"""

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType

import pytest

import powerinfer
from powerinfer import LLM, SamplingParams

PACKAGE = Path(powerinfer.__file__).resolve().parent
ARCHITECTURE = Path(__file__).resolve().parent.parent / "ARCHITECTURE.md"

# Types whose objects run something, and what they are told meanwhile.
_WATCHED_TYPES = ("Exchange", "StepRecord")
_MARKS = ("StepRecord.begin", "StepRecord.end")

# They ask for steps and are not on the stack of one.
ENTRY = {"cli/commands/run.py", "engine/llm.py"}


class Trace:
    """What one decode step did.

    Attributes:
        on_stack: files on the stack while a call into the extension ran.
        launching: files on the stack while a GPU kernel was launched.
        executed: files that were executed at all.
        calls: names of the calls into the extension, in order.
    """

    def __init__(self) -> None:
        self.on_stack: set[str] = set()
        self.launching: set[str] = set()
        self.executed: set[str] = set()
        self.calls: list[str] = []
        self._is_on = False

    @contextmanager
    def step(self) -> Iterator[None]:
        """Watch what runs in here."""
        self._is_on = True
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(None)
            self._is_on = False

    def native_call(self, name: str, frame: FrameType) -> None:
        """Note everything from this frame up."""
        if self._is_on:
            self.calls.append(name)
            self.on_stack.update(_files_of_stack(frame))

    def launch(self, frame: FrameType) -> None:
        """Note everything from this frame up."""
        if self._is_on:
            self.launching.update(_files_of_stack(frame))

    def _profile(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            self.executed.update(_files_of(frame.f_code.co_filename))


def _files_of_stack(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        yield from _files_of(frame.f_code.co_filename)
        frame = frame.f_back


@cache  # It is asked at every call of the kernels' interpreter.
def _files_of(name: str) -> frozenset[str]:
    path = Path(name)
    if not path.is_relative_to(PACKAGE):
        return frozenset()
    return frozenset({path.relative_to(PACKAGE).as_posix()})


class Watched:
    """The extension, or an object of it, telling of every function that is called."""

    def __init__(self, watched: object, trace: Trace, prefix: str = "") -> None:
        self._watched, self._trace, self._prefix = watched, trace, prefix

    def __getattr__(self, name: str) -> object:
        value: object = getattr(self._watched, name)
        if name in _WATCHED_TYPES and callable(value):
            make: Callable[..., object] = value
            return lambda *args: Watched(make(*args), self._trace, f"{name}.")
        if isinstance(value, type) or not callable(value):
            return value
        return self._telling(name, value)

    def _telling(self, name: str, function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object, **options: object) -> object:
            if self._prefix + name not in _MARKS:
                self._trace.native_call(self._prefix + name, sys._getframe(1))
            return function(*args, **options)

        return call


def _trace(patch: pytest.MonkeyPatch) -> Trace:
    trace = Trace()
    for name in ("ops", "exchange"):
        module = importlib.import_module(f"powerinfer.ops.cpu.{name}")
        patch.setattr(module, "_core", Watched(module._core, trace))
    return trace


def _watch_launches(patch: pytest.MonkeyPatch, trace: Trace) -> None:
    from triton.runtime.interpreter import InterpretedFunction

    run = InterpretedFunction.run

    def told(function: object, *args: object, **options: object) -> object:
        trace.launch(sys._getframe(1))
        return run(function, *args, **options)

    patch.setattr(InterpretedFunction, "run", told)


def _listed(heading: str) -> tuple[set[str], set[str], set[str]]:
    """Files in a section's table, in its paragraph on launches and in that on helpers."""
    text = ARCHITECTURE.read_text(encoding="utf8")
    section = text.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = "\n".join(re.findall(r"^\| \d+ \|([^|]*)\|", section, re.MULTILINE))
    return _files(rows), _paragraph(section, "Launches"), _paragraph(section, "Helpers")


def _paragraph(section: str, word: str) -> set[str]:
    return _files("\n".join(re.findall(rf"(?ms)^{word}[^:]*:(.*?)(?:\n\n|\Z)", section)))


def _files(text: str) -> set[str]:
    return {path.removeprefix("src/powerinfer/") for path in re.findall(r"`([a-z_/]+\.py)`", text)}


def _check(trace: Trace, heading: str, *, most_files: int, most_helpers: int) -> None:
    path, launching, helpers = _listed(heading)
    passed = trace.on_stack | ENTRY
    assert path == passed
    assert len(path) <= most_files
    assert len(helpers) <= most_helpers
    assert launching == trace.launching - passed
    assert helpers == trace.executed - passed - trace.launching


def test_path_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = _trace(monkeypatch)
    with LLM(threads=1, device="cpu") as llm:
        texts = llm.stream("", SamplingParams(temperature=0, max_tokens=3))
        next(texts)
        with trace.step():
            next(texts)
        first_calls = list(trace.calls)
        trace.calls.clear()
        with trace.step():
            next(texts)
        num_layers = llm.loaded.model.config.num_layers
    _check(trace, "The life of one token", most_files=8, most_helpers=15)
    # Embedding, final norm and output head are no layer's.
    assert len(first_calls) - 3 == 9 * num_layers
    assert trace.calls == ["embed", "StepRecord.run"]


@pytest.mark.slow
def test_path_on_two_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torch", "triton"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    # Imported late: without torch there is nothing to import.
    from placed_models import load, make_plan, place, tiny_file
    from powerinfer.engine.direct import DirectSequence
    from powerinfer.ops.cpu.ops import NativeOps

    trace = _trace(monkeypatch)
    _watch_launches(monkeypatch, trace)
    model = load(tiny_file(tmp_path, "llama-powerinfer"), NativeOps(1))
    placed = place(model, make_plan("SS"))
    sequence = DirectSequence(placed, placed.new_cache(), batch_size=8)
    sequence.append(5)
    with trace.step():
        sequence.append(17)
    # What asks for steps is the same on every device.
    asking = {"engine/direct.py", "engine/prefill.py", "engine/text.py"}
    trace.executed -= asking
    trace.on_stack -= asking
    trace.launching -= asking
    trace.on_stack |= {"engine/text_stream.py", "engine/engine.py"}
    _check(trace, "Two devices", most_files=14, most_helpers=17)
