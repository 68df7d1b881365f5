"""Tasks that `powerinfer eval` asks a model, found by their names or files."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from powerinfer import _plugins
from powerinfer.errors import TaskError
from powerinfer.evaluation.items import Choices, Contexts, Continuation, Items
from powerinfer.evaluation.task_files import read_json_lines

__all__ = ["NamedTask", "Task", "find_tasks", "reworded"]

_FOLDER = "powerinfer.evaluation.tasks"
_SUFFIXES = (".jsonl", ".json", ".tsv")
_SOURCE = (
    "such files are in scripts/eval/local_data of github.com/mosaicml/llm-foundry; RTE/dev.tsv is "
    "in GLUE's archive at gluebenchmark.com"
)

T = TypeVar("T", Choices, Contexts, Continuation)


@dataclass(frozen=True, slots=True)
class Task:
    """Named items to ask.

    Attributes:
        is_normalized: also count the choice that is likeliest per character, as lm-eval does for
            tasks whose choices differ much in length.
    """

    name: str
    path: Path
    items: Items
    is_normalized: bool = False

    def first(self, limit: int | None) -> "Task":
        """Return the task with at most `limit` items."""
        return replace(self, items=self.items[:limit])


@dataclass(frozen=True, slots=True)
class NamedTask:
    """A task of known wording.

    Attributes:
        files: possible names of its file in the folder of task files, the usual one first.
        read: reads the file and words its items as lm-eval words this task.
    """

    files: tuple[str, ...]
    read: Callable[[Path], Items]
    is_normalized: bool = False


def reworded(form: type[T], reword: Callable[[T], T]) -> Callable[[Path], Items]:
    """Make a reader of JSON lines in one form that words each item as lm-eval does."""

    def read(path: Path) -> Items:
        items = read_json_lines(path, form)
        return tuple(reword(item) for item in items if isinstance(item, form))

    return read


def find_tasks(names: Sequence[str], folder: Path | None) -> list[Task]:
    """Find tasks and read them.

    Args:
        names: names of tasks, or paths of files in one of the forms of `items`.

    Raises:
        TaskError: there is no such task or file, or the file is malformed.
    """
    tasks: dict[str, Task] = {}
    for name in names:
        task = _from_file(Path(name)) if _is_path(name) else _named(name, folder)
        known = tasks.get(task.name)
        if known is not None and known.path != task.path:
            raise TaskError(
                f"{known.path} and {task.path} would both be the task {task.name}; rename one"
            )
        tasks[task.name] = task
    return list(tasks.values())


def _is_path(name: str) -> bool:
    return "/" in name or name.endswith(_SUFFIXES)


def _from_file(path: Path) -> Task:
    return Task(path.stem, path, read_json_lines(path))


def _named(name: str, folder: Path | None) -> Task:
    known = _plugins.keys(_FOLDER)
    if name not in known:
        raise TaskError(
            f"{_plugins.unsupported('task', name, known)} A file of your own is named by its path, "
            "such as ./questions.jsonl"
        )
    task = _plugins.load(_FOLDER, name, "TASK", what="task")
    if not isinstance(task, NamedTask):
        raise TypeError(f"{_FOLDER}.{name}.TASK is not a NamedTask")
    expected = " or ".join(task.files)
    if folder is None:
        raise TaskError(
            f"the task {name} reads {expected}",
            remedy=f"name the folder that has it with {{data}}; {_SOURCE}",
        )
    for file in task.files:
        path = folder / file
        if path.exists():
            return Task(name, path, task.read(path), task.is_normalized)
    raise TaskError(f"{folder} has no {expected}, which the task {name} reads; {_SOURCE}")
