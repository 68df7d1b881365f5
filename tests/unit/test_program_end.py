"""How a program ends that still uses a model: with its own exit code, and without a word."""

import subprocess
import sys
from pathlib import Path

import pytest

from patience import PATIENCE_S

pytestmark = pytest.mark.usefixtures("unmeasured_programs")
_START = """
import atexit, sys, threading, time
from powerinfer import LLM, SamplingParams
path = {path!r}
endless = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
short = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
begun = threading.Event()

def for_ever(work):
    def run():
        while True:
            work()
            begun.set()
    for _ in range(2):
        threading.Thread(target=run, daemon=True).start()
    begun.wait(60)
    time.sleep(0.1)
"""
_LOAD = "llm = LLM(path, threads=2, context_length=64)\n"


def run(code: str, tiny: Path, *flags: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a program that runs `code`."""
    command = [sys.executable, *flags, "-c", _START.format(path=str(tiny)) + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "work",
    [
        "llm.generate('hello', endless)",
        *(
            pytest.param(work, marks=pytest.mark.slow)
            for work in (
                "llm.embed(['hello', 'world'])",
                "llm.score('hello world')",
                "LLM(path, threads=2).close()",
                "LLM(path, threads=2)",
            )
        ),
    ],
)
def test_a_daemon_thread_does_not_change_how_the_program_ends(work: str, tiny: Path) -> None:
    for _ in range(3):  # the abort did not come every time
        assert run(f"{_LOAD}for_ever(lambda: {work})\nsys.exit(5)\n", tiny) == (5, "", "")


def test_weights_that_are_freed_meanwhile_do_not_abort_the_program(tiny: Path) -> None:
    """The extension frees them, and on the way Python gives its lock up, as to unmap a file."""
    code = """
import numpy
from powerinfer import _core

class Memory(bytearray):
    def __del__(self):
        begun.set()
        while True:
            time.sleep(0.001)

def free():
    _core.Matrix(numpy.frombuffer(Memory(64), numpy.uint8), "f32", 4, 4)

threading.Thread(target=free, daemon=True).start()
begun.wait(60)
sys.exit(5)
"""
    assert run(code, tiny) == (5, "", "")


@pytest.mark.parametrize(
    "work",
    [
        "print(len(llm.generate('hello', short)[0].token_ids))",
        "print(len([*llm.stream('hello', short)]) and 5)",
    ],
)
def test_a_function_at_the_programs_end_may_generate(work: str, tiny: Path) -> None:
    assert run(f"{_LOAD}atexit.register(lambda: {work})\n", tiny) == (0, "5\n", "")


def test_a_destructor_at_the_programs_end_does_not_hang(tiny: Path) -> None:
    """It may fail, because Python imports nothing any more."""
    code = """
class Last:
    def __del__(self):
        try:
            llm.generate("hello", short)
        except ImportError:
            pass

llm.generate("hello", short)
last = Last()
"""
    assert run(_LOAD + code, tiny, "-X", "dev") == (0, "", "")
