"""Runs the evaluation of an orchestra, and prints its report."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import click

from powerinfer.cli.flags.options import print_json
from powerinfer.cli.report.progress import ProgressBar
from powerinfer.cli.report.tables import print_paragraph, print_table, printable
from powerinfer.orchestra.evaluation.ablations import ablations
from powerinfer.orchestra.evaluation.evaluate import Comparison, compare
from powerinfer.orchestra.evaluation.intervals import Interval, mean_interval
from powerinfer.orchestra.evaluation.report import Row, report_json, table
from powerinfer.orchestra.evaluation.reward import Objective
from powerinfer.orchestra.evaluation.stages import Stage, real_stage, simulated_stage
from powerinfer.orchestra.evaluation.task import Task
from powerinfer.orchestra.evaluation.truth import SimulatedPool, simulate_pool
from powerinfer.orchestra.pool import Pool

if TYPE_CHECKING:
    from powerinfer.options.llm_options import LLMOptions
    from powerinfer.orchestra.primitives.primitive import Permissions

__all__ = ["Report", "check_kinds", "print_report", "run_real", "run_simulated"]

_POLICY = "policy"


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
    comparison: Comparison,
    seed: int,
    model: str | None,
    options: "LLMOptions",
    *,
    ablated: bool = False,
) -> Report:
    """Evaluate in a simulated pool.

    Raises:
        PowerInferError: the model of the policy cannot be opened.
        click.UsageError: the pool knows nothing of a task's kind.
    """
    pool = simulate_pool(seed, comparison.cost_weight)
    check_kinds(pool, (*comparison.tasks, *comparison.to_learn))
    comparison = replace(comparison, objective=pool.objective)
    with simulated_stage(pool, model, **options) as stage:
        found = _compared(comparison, stage, ablated=ablated)
    return Report(*found, _oracle(pool, comparison.tasks))


def check_kinds(pool: SimulatedPool, tasks: Sequence[Task]) -> None:
    """Check that a simulated pool knows the kinds of all tasks.

    Raises:
        click.UsageError: it does not.
    """
    known = next(iter(pool.skills.values()))
    for task in tasks:
        for kind in (task.kind, *(part.kind for part in task.parts)):
            if kind not in known:
                raise click.UsageError(
                    f"a simulated pool knows nothing of tasks of the kind {kind!r:.60}, but of "
                    f"{', '.join(known)}"
                )


def run_real(
    comparison: Comparison,
    pool: Pool,
    permissions: "Permissions",
    options: "LLMOptions",
    *,
    ablated: bool = False,
) -> Report:
    """Evaluate with the workers of a pool.

    Raises:
        PowerInferError: a model or worker cannot be opened.
    """
    with real_stage(pool, permissions, comparison.seed, **options) as stage:
        return Report(*_compared(comparison, stage, ablated=ablated), {})


def _compared(
    comparison: Comparison, stage: Stage, *, ablated: bool
) -> tuple[list[Row], Objective]:
    policies = [] if stage.policy is None else [(_POLICY, stage.policy)]
    if stage.policy is not None and ablated:
        dearest = max(stage.arms, key=lambda arm: stage.pool[arm.worker].cost.rank)
        policies += ablations(stage.policy, dearest)
    with ProgressBar("evaluating", unit="runs") as bar:
        return compare(
            comparison,
            stage.run,
            stage.pool,
            stage.arms,
            policies,
            lambda _, done, total: bar(done, total),
        )


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
