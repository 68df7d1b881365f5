"""`execute_python`: leave, programs of the query and of the worker, and what is told of them."""

import pytest

from powerinfer.errors import UnsupportedError
from powerinfer.orchestra.primitives import execute_python
from powerinfer.orchestra.primitives.primitive import Observation, Permissions, PrimitiveError
from powerinfer.orchestra.sandbox.limits import Limits
from primitive_calls import ScriptedWorker, call, run
from sandbox_cases import need_sandbox

_ALLOWED = Permissions(allowed=frozenset({"execute_python"}))


def _execute(query: str, worker: ScriptedWorker | None = None) -> Observation:
    need_sandbox()
    return run("execute_python", call(query, ask=worker, permissions=_ALLOWED))


def test_without_leave_nothing_runs() -> None:
    with pytest.raises(PrimitiveError, match="running code is not allowed"):
        run("execute_python", call("print(1)", ask=ScriptedWorker()))


@pytest.mark.parametrize(
    ("query", "text", "ok"),
    [
        ("Run this:\n```python\nprint(6 * 7)\n```", "42", True),
        ("sum(range(10))", "45", True),
        ("x = 1", "[the program printed nothing]", True),
        ("print(1); exit(3)", "1\n[the program ended with exit code 3]", False),
        ("print('\ud800')", "?", True),
        ("import os; os.kill(os.getpid(), 9)", "[the program ended with exit code -9]", False),
        ("no python at all", "SyntaxError: invalid syntax", False),
    ],
)
def test_the_program_of_the_query(query: str, text: str, ok: bool) -> None:
    found = _execute(query)
    assert found.text.endswith(text)
    assert (found.ok, found.untrusted) == (ok, True)


def test_the_worker_writes_a_program_for_a_task_in_words() -> None:
    worker = ScriptedWorker("Here:\n```python\nprint(2 ** 10)\n```")
    assert _execute("Two to the tenth.", worker).text == "1024"
    # What is a program already asks nobody.
    assert _execute("print(5)", worker).text == "5"


def test_the_limit_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute_python, "_LIMITS", Limits(output_bytes=100))
    found = _execute("print('x' * 1000)")
    assert found.text == "x" * 100 + "\n[the program was ended at its limit of output]"
    assert not found.ok


def test_without_a_sandbox_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object) -> None:
        raise UnsupportedError("no sandbox works here", remedy="install bubblewrap")

    monkeypatch.setattr(execute_python, "run_isolated", refuse)
    with pytest.raises(PrimitiveError, match="no sandbox works here: install bubblewrap"):
        run("execute_python", call("print(1)", permissions=_ALLOWED))
