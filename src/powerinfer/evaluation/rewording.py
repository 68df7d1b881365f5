"""Wording the items of a file as lm-eval words the same task."""

from collections.abc import Callable
from pathlib import Path

from powerinfer.errors import TaskError
from powerinfer.evaluation.items import Choices, Contexts
from powerinfer.evaluation.task_files import read_json_lines

__all__ = ["reworded_choices", "reworded_contexts"]


def reworded_choices(
    reword: Callable[[Choices], Choices],
) -> Callable[[Path], tuple[Choices, ...]]:
    """A reader of JSON lines with choices, which puts each item into other words."""

    def read(path: Path) -> tuple[Choices, ...]:
        items = read_json_lines(path)
        found = tuple(reword(item) for item in items if isinstance(item, Choices))
        if not found:
            raise TaskError(f"{path}:1: expected query, choices and gold, as this task has them")
        return found

    return read


def reworded_contexts(
    reword: Callable[[Contexts], Contexts],
) -> Callable[[Path], tuple[Contexts, ...]]:
    """The same for JSON lines with several contexts."""

    def read(path: Path) -> tuple[Contexts, ...]:
        items = read_json_lines(path)
        found = tuple(reword(item) for item in items if isinstance(item, Contexts))
        if not found:
            raise TaskError(
                f"{path}:1: expected context_options, continuation and gold, as this task has them"
            )
        return found

    return read
