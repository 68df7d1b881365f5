"""Tasks of the package reasoning-gym: procedural, with judges of their own."""

import inspect
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from powerinfer import _plugins
from powerinfer._extras import how_to_install
from powerinfer.errors import TaskError, UnsupportedError
from powerinfer.orchestra.evaluation.checking import Check
from powerinfer.orchestra.evaluation.task import Task

if TYPE_CHECKING:
    from reasoning_gym.dataset import ProceduralDataset

__all__ = ["reasoning_gym_tasks"]

# Some judges run an answer as Python, also by way of sympy's parser, and answers are not to be
# trusted.
_RUNS_ANSWER = re.compile(r"\b(?:eval|exec|parse_expr|sympify)\(")


def reasoning_gym_tasks(names: Sequence[str], count: int, seed: int) -> tuple[Task, ...]:
    """Make tasks of data sets of reasoning-gym, of each equally many.

    The same arguments give the same tasks; fewer are the first of more.

    Args:
        names: of its data sets, such as `chain_sum`; each becomes a kind.

    Raises:
        TaskError: there is no such data set, its judge would run answers as programs, or it cannot
            be made.
        UnsupportedError: the package is not installed.
    """
    if not names:
        raise TaskError("name a data set of reasoning-gym, such as reasoning-gym:chain_sum")
    sizes = [len(range(at, count, len(names))) for at in range(len(names))]
    # A data set cannot be empty.
    sets = [_data_set(name, max(size, 1), seed) for name, size in zip(names, sizes, strict=True)]
    tasks = []
    for index in range(count):
        number = index % len(names)
        tasks.append(_task(names[number], sets[number], index // len(names), seed))
    return tuple(tasks)


def _data_set(name: str, size: int, seed: int) -> "ProceduralDataset":
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError:
        raise UnsupportedError(
            "tasks of reasoning-gym need the package reasoning-gym, which is not installed",
            remedy=how_to_install("orchestra"),
        ) from None
    if name not in DATASETS:
        known = tuple(sorted(DATASETS))
        raise TaskError(str(_plugins.unsupported("data set of reasoning-gym", name, known)))
    try:
        found: ProceduralDataset = reasoning_gym.create_dataset(name, seed=seed, size=size)
    except Exception as error:  # noqa: BLE001  a data set may refuse its settings in any way
        raise TaskError(f"reasoning-gym:{name} cannot be made: {_reason(error)}") from None
    if _RUNS_ANSWER.search(inspect.getsource(type(found).score_answer)):
        raise TaskError(
            f"reasoning-gym:{name} is not supported: to judge an answer, it runs it as Python"
        )
    return found


def _task(name: str, found: "ProceduralDataset", index: int, seed: int) -> Task:
    try:
        entry = found[index]
    except Exception as error:  # noqa: BLE001  generators of many authors
        raise TaskError(f"reasoning-gym:{name}: task {index} failed: {_reason(error)}") from None
    return Task(
        id=f"{name}-{seed}-{index}",
        question=str(entry["question"]),
        gold=str(entry["answer"]),
        check=Check.EXACT,
        kind=name,
        score=partial(_score, found, entry),
    )


def _score(found: "ProceduralDataset", entry: Mapping[str, object], answer: str) -> float:
    try:
        return float(found.score_answer(answer.strip(), entry))
    except Exception:  # noqa: BLE001  judges fail on answers that they cannot read
        return 0.0


def _reason(error: Exception) -> str:
    return " ".join(f"{type(error).__name__} {error}".split())[:200]
