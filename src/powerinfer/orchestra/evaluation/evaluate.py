"""Evaluations: policies and baselines on the same tasks."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from powerinfer.orchestra.evaluation.bandit import Trial
from powerinfer.orchestra.evaluation.baselines import Baseline, always, baselines
from powerinfer.orchestra.evaluation.episodes import Episode, Run
from powerinfer.orchestra.evaluation.report import Row, summarize
from powerinfer.orchestra.evaluation.reward import CostScale, Objective
from powerinfer.orchestra.evaluation.task import Task
from powerinfer.orchestra.evaluation.truth import Arm
from powerinfer.orchestra.policy import Policy
from powerinfer.orchestra.pool import Pool

__all__ = ["Comparison", "Progress", "Tried", "compare", "evaluate", "learning_tasks", "try_arms"]

Progress = Callable[[str, int, int], None]
"""Called with what is done, how many of it are done, and how many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What is compared.

    Attributes:
        tasks: that all policies do.
        to_learn: tasks that the learning baselines try every arm on; may be empty.
        objective: of the rewards; None for one with the scale of the costs that are measured, those
            of learning if there are any.
        cost_weight: of a measured objective, as is `second_price`.
        seed: of the random baseline.
    """

    tasks: tuple[Task, ...]
    to_learn: tuple[Task, ...] = ()
    objective: Objective | None = None
    cost_weight: float = 0.1
    second_price: float = 1.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Tried:
    """An arm has done a task alone."""

    task: Task
    arm: Arm
    episode: Episode

    def trial(self, objective: Objective) -> Trial:
        """Write it into the ledger that baselines learn from."""
        reward = self.episode.reward(objective)
        task = self.task
        return Trial(task.question, task.kind, self.arm, self.episode.is_right, reward)


def compare(
    comparison: Comparison,
    run: Run,
    pool: Pool,
    arms: Sequence[Arm],
    policies: Sequence[tuple[str, Policy]],
    progress: Progress = lambda *_: None,
) -> tuple[list[Row], Objective]:
    """Let policies and all baselines do the same tasks; return a row for each."""
    tried = try_arms(run, arms, learning_tasks(comparison.to_learn), progress)
    objective = comparison.objective
    if objective is None and tried:
        objective = _measured(comparison, [each.episode for each in tried])
    trials = [each.trial(objective) for each in tried] if objective is not None else []
    kinds = {task.question: task.kind for task in comparison.tasks}
    others = baselines(pool, arms, trials, kinds, comparison.seed)
    compared = [*policies, *((each.name, each) for each in others)]
    episodes = list(evaluate(run, comparison.tasks, compared, progress))
    objective = objective or _measured(comparison, episodes)
    return summarize(episodes, objective), objective


def _measured(comparison: Comparison, episodes: Sequence[Episode]) -> Objective:
    """Make an objective with the scale of costs that were measured."""
    price = comparison.second_price
    scale = CostScale.of([each.price + price * each.seconds for each in episodes])
    return Objective(scale=scale, cost_weight=comparison.cost_weight, second_price=price)


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
    run: Run, arms: Sequence[Arm], tasks: Sequence[Task], progress: Progress = lambda *_: None
) -> list[Tried]:
    """Let every arm do every task alone."""
    tried = []
    for number, task in enumerate(tasks, 1):
        for arm in arms:
            episode, _ = run(task, str(arm), Baseline(str(arm), always(arm)))
            tried.append(Tried(task, arm, episode))
        progress("learning", number, len(tasks))
    return tried


def evaluate(
    run: Run,
    tasks: Sequence[Task],
    policies: Sequence[tuple[str, Policy]],
    progress: Progress = lambda *_: None,
) -> Iterator[Episode]:
    """Let each policy do all tasks; yield each episode as it ends.

    Baselines that choose alike for a task share the run, since they would do the same.
    """
    done: dict[tuple[str, object], Episode] = {}
    total = len(tasks) * len(policies)
    for number, (name, policy) in enumerate(policies):
        for index, task in enumerate(tasks, 1):
            choice = policy.choose(task.question) if isinstance(policy, Baseline) else name
            if (task.id, choice) not in done:
                done[task.id, choice], _ = run(task, name, policy)
            yield replace(done[task.id, choice], policy=name)
            progress(name, number * len(tasks) + index, total)
