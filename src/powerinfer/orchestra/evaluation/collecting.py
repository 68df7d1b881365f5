"""Collects trajectories by a search over routes: what training learns from.

Each task is done in several ways: by single pairs, the next one following where one fails, and
split in two. All runs are kept; bad ones say why they are bad.
"""

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from powerinfer.errors import TaskError
from powerinfer.orchestra.actions import Plan, Route, Subtask, Verify
from powerinfer.orchestra.evaluation.baselines import Baseline, Choose, always, halves
from powerinfer.orchestra.evaluation.episodes import Episode
from powerinfer.orchestra.evaluation.evaluate import Progress
from powerinfer.orchestra.evaluation.stages import Stage
from powerinfer.orchestra.evaluation.task import Task
from powerinfer.orchestra.evaluation.truth import Arm
from powerinfer.orchestra.policy import Decision
from powerinfer.orchestra.rules import Offers
from powerinfer.orchestra.state import State
from powerinfer.orchestra.trajectory import trajectory

__all__ = ["Search", "collect"]

_ERROR = "error: "
_BEGINNING = b'{"id": "powerinfer_'


@dataclass(frozen=True)
class Search:
    """A way to do a task; see `Policy`.

    Attributes:
        spare: pairs that take over in turn when a task that is not split has failed.
    """

    choose: Choose
    spare: tuple[Arm, ...] = ()

    async def decide(self, task: str, state: State, offers: Offers) -> Decision:
        """Do as a baseline does, but repair what reports failure."""
        due = state.next(offers)
        steps = self.choose(task)
        if due.must_verify:
            last = max(state.observations)
            has_failed = state.observations[last].text.startswith(_ERROR)
            if has_failed and due.to_verify and self._spare(state, offers) is not None:
                return Decision(action=Verify(due.round, (last,), "it failed"))
            reason = "nobody else can do it" if has_failed else "the result answers the task"
            return Decision(action=Verify(due.round, (), reason))
        if state.plans and due.most_subtasks:
            return Decision(action=Plan(due.round, (Subtask(due.first_id, (), steps[-1][0]),)))
        if due.to_route is not None and due.round > 1:
            arm = self._spare(state, offers) or _anyone(offers)
            return Decision(action=Route(due.round, due.to_route.id, *arm, due.to_route.text))
        return await Baseline("", self.choose).decide(task, state, offers)

    def _spare(self, state: State, offers: Offers) -> Arm | None:
        used = {(each.worker, each.primitive) for each in state.routes}
        able = (
            arm
            for arm in self.spare
            if arm not in used and arm.primitive in offers.get(arm.worker, ())
        )
        return next(able, None)


def _anyone(offers: Offers) -> Arm:
    return next(Arm(worker, each) for worker, offered in offers.items() for each in offered)


def collect(
    stage: Stage,
    tasks: Sequence[Task],
    path: Path,
    *,
    tries: int,
    seed: int,
    progress: Progress = lambda *_: None,
) -> int:
    """Append a row for each task and way to a file of JSON lines; return how many there are new.

    Rows that the file has are not done again, so an interrupted search continues. Their form is
    that of `trajectory`, with `task`, `way`, `is_right`, `cost` and `reason`, which is empty for a
    good run.

    Args:
        tries: pairs that each task begins with, and splits of it.
        seed: of the choice of pairs.

    Raises:
        TaskError: the file cannot be read or written, or has other lines.
    """
    done = _done(path)
    count = 0
    for number, task in enumerate(tasks, 1):
        for way, search in _ways(task, stage.arms, tries, seed):
            if (task.id, way) not in done:
                episode, outcome = stage.run(task, way, search)
                row = {**trajectory(outcome, stage.pool), **_judgement(task, way, episode)}
                _append(path, row)
                count += 1
        progress("collecting", number, len(tasks))
    return count


def _ways(task: Task, arms: Sequence[Arm], tries: int, seed: int) -> list[tuple[str, Search]]:
    choice = random.Random(f"{seed}/{task.id}")
    order = choice.sample(arms, len(arms))
    ways = [
        (f"whole {arm}", Search(always(arm), tuple(order[at + 1 :])))
        for at, arm in enumerate(order[:tries])
    ]
    first, second = halves(task.question)
    if first == second:
        return ways
    for _ in range(tries):
        one, other = choice.choice(arms), choice.choice(arms)
        ways.append((f"split {one} {other}", Search(_pair(one, other))))
    return list(dict(ways).items())


def _pair(one: Arm, other: Arm) -> Choose:
    def choose(task: str) -> tuple[tuple[str, Arm], ...]:
        first, second = halves(task)
        return ((first, one), (second, other))

    return choose


def _judgement(task: Task, way: str, episode: Episode) -> dict[str, object]:
    reason = "" if episode.is_right else "the answer is wrong"
    if not episode.is_valid:
        reason = episode.error or "it breaks the protocol"
    return {
        "category": task.kind,
        "gold_answer": task.gold,
        "teacher": "search",
        "task": task.id,
        "way": way,
        "is_right": episode.is_right,
        "cost": {"seconds": episode.seconds, "price": episode.price, "tokens": episode.tokens},
        "reason": reason,
    }


def _done(path: Path) -> set[tuple[str, str]]:
    """Read which rows there are; a last row that was cut is removed."""
    try:
        data = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise TaskError(f"{path}: cannot be read: {error.strerror or error}") from None
    *lines, cut = data.split(b"\n")
    done = set()
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            done.add((str(row["task"]), str(row["way"])))
        except (ValueError, KeyError, TypeError, RecursionError):
            raise TaskError(f"{path}:{number}: is no row of a collection") from None
    if cut:
        if cut[: len(_BEGINNING)] != _BEGINNING[: len(cut)]:
            raise TaskError(f"{path}:{len(lines) + 1}: is no row of a collection")
        _cut(path, len(data) - len(cut))
    return done


def _cut(path: Path, size: int) -> None:
    try:
        with path.open("r+b") as file:
            file.truncate(size)
    except OSError as error:
        raise TaskError(f"{path}: cannot be written: {error.strerror or error}") from None


def _append(path: Path, row: dict[str, object]) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
    except OSError as error:
        raise TaskError(f"{path}: cannot be written: {error.strerror or error}") from None
