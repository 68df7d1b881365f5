"""Task files: JSON lines, an object for each task.

Its keys are those of `Task`: `question` and `gold` must be there; `id`, `check`, `kind`,
`documents`, `databases` and `parts` may be.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from powerinfer._files import read_small_file, write_atomically
from powerinfer.errors import TaskError
from powerinfer.orchestra.evaluation.checking import Check
from powerinfer.orchestra.evaluation.task import Attachments, Part, Task
from powerinfer.sidecar.fields import Field

__all__ = ["read_tasks", "write_tasks"]

_LARGEST_FILE = 1 << 28
_LONGEST_QUESTION = 100_000
_LONGEST_FILE = 10_000_000
_KEYS = ("question", "gold", "id", "check", "kind", "documents", "databases", "parts")
_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")


def read_tasks(path: Path) -> tuple[Task, ...]:
    """Read a task file.

    Raises:
        TaskError: it is missing, empty or malformed; names the line.
    """
    tasks = [_task(line, where) for where, line in _lines(path)]
    if not tasks:
        raise TaskError(f"{path}: has no tasks; expected one JSON object on each line")
    seen: set[str] = set()
    for task in tasks:
        if task.id in seen:
            raise TaskError(f"{path}: two tasks have the id {task.id[:60]!r}")
        seen.add(task.id)
    return tuple(tasks)


def write_tasks(path: Path, tasks: Sequence[Task]) -> None:
    """Write a task file.

    Raises:
        TaskError: the file cannot be written, or a task is judged by a function.
    """
    for task in tasks:
        if task.score is not None:
            raise TaskError(f"task {task.id} is judged by a function, which no file can hold")
    lines = "".join(json.dumps(_row(task), ensure_ascii=False) + "\n" for task in tasks)
    write_atomically(path, lines.encode(), error=TaskError)


def _row(task: Task) -> dict[str, object]:
    row: dict[str, object] = {
        "id": task.id,
        "question": task.question,
        "gold": task.gold,
        "check": task.check.value,
        "kind": task.kind,
    }
    if task.attachments.documents:
        row["documents"] = dict(task.attachments.documents)
    if task.attachments.databases:
        row["databases"] = dict(task.attachments.databases)
    if task.parts:
        row["parts"] = [
            {"question": each.question, "gold": each.gold, "kind": each.kind} for each in task.parts
        ]
    return row


def _lines(path: Path) -> Iterator[tuple[str, bytes]]:
    data = read_small_file(path, _LARGEST_FILE, noun="task file", error=TaskError)
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), 1):
        if line.strip():
            yield f"{path}:{number}", line


def _task(line: bytes, where: str) -> Task:
    def error(problem: str) -> TaskError:
        return TaskError(f"{where}: {problem}")

    top = Field.parse(line, error)
    found = top.fields()
    for name, each in found.items():
        if name not in _KEYS:
            each.fail(f"is unknown: use {', '.join(_KEYS)}")
    question = _said(top["question"], _LONGEST_QUESTION)
    return Task(
        id=found["id"].text(200) if "id" in found else where.rpartition("/")[2],
        question=question,
        gold=_said(top["gold"], _LONGEST_QUESTION),
        check=_check(found["check"]) if "check" in found else Check.NORMALIZED,
        kind=found["kind"].text(100) if "kind" in found else "",
        attachments=Attachments(
            documents=_files(found["documents"]) if "documents" in found else {},
            databases=_files(found["databases"]) if "databases" in found else {},
        ),
        parts=_parts(found["parts"]) if "parts" in found else (),
    )


def _said(field: Field, longest: int) -> str:
    text = field.text(longest)
    if not text.strip():
        field.fail("is empty")
    return text


def _check(field: Field) -> Check:
    name = field.text()
    if name not in list(Check):
        field.fail(f"is {name[:60]!r}: use {', '.join(Check)}")
    return Check(name)


def _files(field: Field) -> Mapping[str, str]:
    files = field.fields()
    for name, each in files.items():
        if _FILE_NAME.fullmatch(name) is None:
            each.fail("is no plain file name")
    return {name: each.text(_LONGEST_FILE) for name, each in files.items()}


def _parts(field: Field) -> tuple[Part, ...]:
    parts = tuple(
        Part(*(_said(each[name], _LONGEST_QUESTION) for name in ("question", "gold", "kind")))
        for each in field.items()
    )
    if len(parts) not in (0, 2):
        field.fail("must be two steps, or none")
    return parts
