"""Evaluations: policies and baselines on the same tasks."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from powerinfer.orchestra.evaluation.bandit import Trial
from powerinfer.orchestra.evaluation.baselines import Baseline, always
from powerinfer.orchestra.evaluation.episodes import Episode, Run
from powerinfer.orchestra.evaluation.reward import CostScale, Objective
from powerinfer.orchestra.evaluation.task import Task
from powerinfer.orchestra.evaluation.truth import Arm
from powerinfer.orchestra.policy import Policy

__all__ = ["Progress", "evaluate", "learning_tasks", "measured_objective", "try_arms"]

Progress = Callable[[str, int, int], None]
"""Called with what is done, how many of it are done, and how many there are."""


@dataclass(frozen=True, slots=True)
class _Tried:
    task: Task
    arm: Arm
    episode: Episode


def learning_tasks(tasks: Sequence[Task]) -> list[Task]:
    """Add the steps of tasks as tasks of their own; the second is told the first's result."""
    found = list(tasks)
    for task in tasks:
        for number, part in enumerate(task.parts):
            known = f"The result is {task.parts[0].gold}.\n" if number else ""
            found.append(
                Task(
                    id=f"{task.id}-step-{number + 1}",
                    question=known + part.question,
                    gold=part.gold,
                    check=task.check,
                    kind=part.kind,
                    attachments=task.attachments,
                )
            )
    return found


def try_arms(
    run: Run,
    arms: Sequence[Arm],
    tasks: Sequence[Task],
    objective: Objective | None = None,
    progress: Progress = lambda *_: None,
) -> list[Trial]:
    """Make the ledger that baselines learn from: every arm does every task alone.

    Args:
        objective: of the rewards; None for one with the scale of these costs.
    """
    tried = []
    for number, task in enumerate(tasks):
        progress("learning", number, len(tasks))
        for arm in arms:
            episode, _ = run(task, str(arm), Baseline(str(arm), always(arm)))
            tried.append(_Tried(task, arm, episode))
    objective = objective or measured_objective([each.episode for each in tried])
    return [
        Trial(
            each.task.question,
            each.task.kind,
            each.arm,
            each.episode.is_right,
            each.episode.reward(objective),
        )
        for each in tried
    ]


def measured_objective(
    episodes: Sequence[Episode], *, cost_weight: float = 0.1, second_price: float = 1.0
) -> Objective:
    """Make an objective with the scale of costs that were measured; there must be one."""
    costs = [each.price + second_price * each.seconds for each in episodes]
    return Objective(scale=CostScale.of(costs), cost_weight=cost_weight, second_price=second_price)


def evaluate(
    run: Run,
    tasks: Sequence[Task],
    policies: Sequence[tuple[str, Policy]],
    progress: Progress = lambda *_: None,
) -> Iterator[Episode]:
    """Let each policy do all tasks; yield each episode as it ends."""
    total = len(tasks) * len(policies)
    for number, (name, policy) in enumerate(policies):
        for index, task in enumerate(tasks):
            progress(name, number * len(tasks) + index, total)
            episode, _ = run(task, name, policy)
            yield episode
