"""Runs the evaluation of an orchestra, and prints its report."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import click

from powerinfer.cli.flags.options import print_json
from powerinfer.cli.report.progress import ProgressBar
from powerinfer.cli.report.tables import print_paragraph, print_table, printable
from powerinfer.orchestra.evaluation.episodes import real_run, simulated_run
from powerinfer.orchestra.evaluation.evaluate import (
    Comparison,
    Progress,
    compare,
)
from powerinfer.orchestra.evaluation.intervals import Interval, mean_interval
from powerinfer.orchestra.evaluation.report import Row, report_json, table
from powerinfer.orchestra.evaluation.reward import Objective
from powerinfer.orchestra.evaluation.simulating import Simulation, simulated_workers
from powerinfer.orchestra.evaluation.task import Task
from powerinfer.orchestra.evaluation.truth import Arm, SimulatedPool, simulate_pool
from powerinfer.orchestra.policy import ModelPolicy, Policy
from powerinfer.orchestra.pool import Pool, is_allowed

if TYPE_CHECKING:
    from powerinfer.options.llm_options import LLMOptions
    from powerinfer.orchestra.primitives.primitive import Permissions

__all__ = ["Report", "print_report", "run_real", "run_simulated"]

_POLICY = "policy"
# Tasks bring documents and databases of their own.
_OF_ATTACHMENTS = ("read_document", "fact_check", "database_query")


@dataclass(frozen=True, slots=True)
class Report:
    """What came of an evaluation.

    Attributes:
        oracle: rewards of the best choices, with all of the protocol's means and with fewer; empty
            where the truth is not known.
    """

    rows: list[Row]
    objective: Objective
    oracle: dict[str, Interval]


def run_simulated(
    comparison: Comparison, seed: int, model: str | None, options: "LLMOptions"
) -> Report:
    """Evaluate in a simulated pool.

    Raises:
        PowerInferError: the model of the policy cannot be opened.
        click.UsageError: the pool knows nothing of a task's kind.
    """
    pool = simulate_pool(seed, comparison.cost_weight)
    _check_kinds(pool, (*comparison.tasks, *comparison.to_learn))
    entries = simulated_workers(pool)
    comparison = replace(comparison, objective=pool.objective)
    with asyncio.Runner() as runner, _deciding(model, options, pool) as policies:
        run = simulated_run(pool, runner)
        with ProgressBar("evaluating", unit="runs") as bar:
            found = compare(comparison, run, entries, pool.arms, policies, _shown(bar))
    return Report(*found, _oracle(pool, comparison.tasks))


def _check_kinds(pool: SimulatedPool, tasks: Sequence[Task]) -> None:
    known = next(iter(pool.skills.values()))
    for task in tasks:
        for kind in (task.kind, *(part.kind for part in task.parts)):
            if kind not in known:
                raise click.UsageError(
                    f"a simulated pool knows nothing of tasks of the kind {kind!r:.60}, but of "
                    f"{', '.join(known)}"
                )


@contextmanager
def _deciding(
    model: str | None, options: "LLMOptions", pool: SimulatedPool
) -> Iterator[list[tuple[str, Policy]]]:
    """Open the model that decides, if there is one."""
    if model is None:
        yield []
        return
    from powerinfer.orchestra.orchestra import Orchestra, open_pool

    with Orchestra(open_pool(None, model), **options) as orchestra:
        worker = orchestra.players.workers[orchestra.pool.policy]
        nobody = Task(id="", question="", gold="")
        primitives = Simulation(pool, nobody).players(orchestra.players.policy).primitives
        yield [(_POLICY, ModelPolicy(worker, simulated_workers(pool), primitives))]


def run_real(
    comparison: Comparison, pool: Pool, permissions: "Permissions", options: "LLMOptions"
) -> Report:
    """Evaluate with the workers of a pool.

    Raises:
        PowerInferError: a model or worker cannot be opened.
    """
    from powerinfer.orchestra.orchestra import Orchestra

    arms = [
        Arm(worker.name, primitive)
        for worker in pool.workers
        for primitive in worker.primitives
        if primitive in _OF_ATTACHMENTS or is_allowed(primitive, permissions)
    ]
    with (
        Orchestra(pool, permissions=permissions, seed=comparison.seed, **options) as orchestra,
        asyncio.Runner() as runner,
        ProgressBar("evaluating", unit="runs") as bar,
    ):
        run = real_run(orchestra.players, runner)
        policies: list[tuple[str, Policy]] = [(_POLICY, orchestra.players.policy)]
        found = compare(comparison, run, pool, arms, policies, _shown(bar))
    return Report(*found, {})


def _shown(bar: ProgressBar) -> Progress:
    return lambda _, done, total: bar(done, total)


def _oracle(pool: SimulatedPool, tasks: Sequence[Task]) -> dict[str, Interval]:
    """Expected rewards of the best choices."""
    return {
        "oracle": mean_interval([pool.best(task) for task in tasks]),
        "without repair": mean_interval([pool.best(task, rounds=1) for task in tasks]),
        "without splitting": mean_interval([pool.best(task, may_split=False) for task in tasks]),
        "without both": mean_interval(
            [pool.best(task, rounds=1, may_split=False) for task in tasks]
        ),
    }


def print_report(report: Report, *, as_json: bool) -> None:
    """Print a report as a table or as one JSON object."""
    if as_json:
        oracle = {name: asdict(each) for name, each in report.oracle.items()}
        print_json({**report_json(report.rows, report.objective), "oracle": oracle})
        return
    cells = [tuple(map(printable, row)) for row in table(report.rows)]
    print_table(cells, left=(0,))
    tasks = report.rows[0].tasks
    print_paragraph(
        f"{tasks} tasks. Intervals are of 95 %: Wilson's of accuracy, else bootstrap. Reward: 0 if "
        f"wrong or invalid, else 1 - {report.objective.cost_weight:g} (1 - R); seconds, price and "
        "tokens are means of a task."
    )
    if report.oracle:
        described = ", ".join(f"{name} {each.value:.3f}" for name, each in report.oracle.items())
        print_paragraph(f"Best possible expected reward by routing: {described}.")
