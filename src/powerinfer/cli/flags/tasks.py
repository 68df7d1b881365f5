"""The options `--tasks`, `--data` and `--limit`."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerinfer.cli.files import PathType
from powerinfer.cli.flags.flags import Command, add_flags
from powerinfer.cli.flags.options import option

if TYPE_CHECKING:
    from powerinfer.evaluation.task import Task

__all__ = ["read_tasks", "task_options"]


def _names(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[str, ...]:
    """Parse `piqa,./file.jsonl`."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def task_options(command: Command) -> Command:
    """Add the flags; the command gets `tasks`, `data` and `limit`, which `read_tasks` takes."""
    return add_flags(
        command,
        option(
            "--tasks T,T", "Names of tasks or paths of task files.", default="", callback=_names
        ),
        option("--data DIR", "Folder with the files of named tasks.", PathType(file_okay=False)),
        option("--limit N", "Ask only the first N items of each task.", click.IntRange(min=1)),
    )


def read_tasks(names: Sequence[str], data: Path | None, limit: int | None) -> "tuple[Task, ...]":
    """Read tasks from their files.

    Raises:
        click.UsageError: the folder `data` does not exist.
        TaskError: there is no such task, or its file is missing or malformed.
    """
    if data is not None and not data.is_dir():
        raise click.UsageError(f"--data {data}: no such folder")
    if not names:
        return ()
    from powerinfer.evaluation.task import find_tasks

    return tuple(task.first(limit) for task in find_tasks(names, data))
