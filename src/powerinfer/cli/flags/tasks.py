"""`--tasks`, `--data`, `--limit`: what commands share that ask tasks."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from powerinfer.cli.files import PathType
from powerinfer.cli.flags.flags import Command, add_flags

if TYPE_CHECKING:
    from powerinfer.evaluation.task import Task

__all__ = ["read_tasks", "task_options"]


def _names(_context: click.Context, _parameter: click.Parameter, text: str) -> tuple[str, ...]:
    """Read `piqa,./file.jsonl`."""
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


def task_options(command: Command) -> Command:
    """Add the flags; the command gets `tasks`, `data` and `limit`, which `read_tasks` takes."""
    return add_flags(
        command,
        click.option(
            "--tasks",
            callback=_names,
            default="",
            metavar="T,T",
            help="Names of tasks or paths of task files.",
        ),
        click.option(
            "--data",
            type=PathType(file_okay=False),
            metavar="DIR",
            help="Folder with the files of named tasks.",
        ),
        click.option(
            "--limit",
            type=click.IntRange(min=1),
            metavar="N",
            help="Ask only the first N items of each task.",
        ),
    )


def read_tasks(names: Sequence[str], data: Path | None, limit: int | None) -> "tuple[Task, ...]":
    """The tasks, read from their files.

    Args:
        names: of tasks, or paths of files.
        data: folder with the files of named tasks.
        limit: most items of each.

    Raises:
        click.UsageError: there is no such folder.
        TaskError: there is no such task, its file is missing, or is malformed.
    """
    if data is not None and not data.is_dir():
        raise click.UsageError(f"--data {data}: no such folder")
    if not names:
        return ()
    from powerinfer.evaluation.task import find_tasks

    return tuple(task.first(limit) for task in find_tasks(names, data))
