"""Where the tasks of an evaluation come from, as the command line names it."""

from pathlib import Path

from powerinfer.errors import TaskError
from powerinfer.orchestra.evaluation.generating import make_tasks
from powerinfer.orchestra.evaluation.reasoning_gym_tasks import reasoning_gym_tasks
from powerinfer.orchestra.evaluation.task import Task
from powerinfer.orchestra.evaluation.task_files import read_tasks

__all__ = ["GENERATED", "find_tasks"]

GENERATED = "generated"
_REASONING_GYM = "reasoning-gym"


def find_tasks(source: str, count: int, seed: int, *, to_learn: bool = False) -> tuple[Task, ...]:
    """Read or make tasks.

    Args:
        source: `generated`, `generated:KIND,...`, `reasoning-gym:NAME,...` or a task file.
        count: of tasks; of a file the first.
        seed: of tasks that are made.
        to_learn: make others than those of an evaluation with this seed.

    Raises:
        TaskError: there is no such source, or it is malformed; a file has no tasks to learn from.
        UnsupportedError: reasoning-gym is not installed.
    """
    form, _, listed = source.partition(":")
    names = tuple(name.strip() for name in listed.split(",") if name.strip())
    if form == GENERATED:
        return make_tasks(count, seed, held_out=not to_learn, only=names)
    if form == _REASONING_GYM:
        # A data set draws task i with the seed plus i.
        return reasoning_gym_tasks(names, count, seed + 1_000_000 * to_learn)
    if to_learn:
        raise TaskError(f"{source}: tasks of a file are not learned from")
    return read_tasks(Path(source))[:count]
