"""Generated tasks of several kinds."""

import random
from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType

from powerinfer import _plugins
from powerinfer.errors import TaskError
from powerinfer.orchestra.evaluation.task import Task
from powerinfer.orchestra.evaluation.wording import Kind

__all__ = ["kinds", "make_tasks"]

_FOLDER = "powerinfer.orchestra.evaluation.tasks"


@cache
def kinds() -> Mapping[str, Kind]:
    """Load all kinds, by name."""
    found: dict[str, Kind] = {}
    for name in _plugins.keys(_FOLDER):
        kind = _plugins.load(_FOLDER, name, "KIND", what="kind of task")
        if not callable(getattr(kind, "make", None)):
            raise TypeError(f"{_FOLDER}.{name}.KIND cannot make tasks")
        found[name] = kind  # type: ignore[assignment]
    return MappingProxyType(found)


def make_tasks(
    count: int, seed: int, *, held_out: bool, only: Sequence[str] = ()
) -> tuple[Task, ...]:
    """Make tasks, of each kind equally many.

    The same arguments give the same tasks; fewer are the first of more.

    Args:
        held_out: word them for evaluation, in wordings that training never sees.
        only: names of kinds; all if empty.

    Raises:
        TaskError: there is no such kind.
    """
    known = kinds()
    for name in only:
        if name not in known:
            raise TaskError(str(_plugins.unsupported("kind of task", name, tuple(known))))
    names = tuple(only) or tuple(known)
    prefix = "eval" if held_out else "train"
    tasks = []
    for index in range(count):
        kind = names[index % len(names)]
        choice = random.Random(f"{seed}/{prefix}/{index}")
        draft = known[kind].make(choice, held_out=held_out)
        tasks.append(
            Task(
                id=f"{prefix}-{seed}-{index}",
                question=draft.question,
                gold=draft.gold,
                check=draft.check,
                kind=kind,
                attachments=draft.attachments,
                parts=draft.parts,
            )
        )
    return tuple(tasks)
