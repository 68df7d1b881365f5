"""Measure how well a policy divides tasks among models and tools, beside baselines."""

from pathlib import Path
from typing import Any

import click

from powerinfer.cli.flags.flags import flags, llm_options
from powerinfer.cli.flags.options import json_option, model_option, option
from powerinfer.cli.orchestra import permissions_of, permissions_options, pool_option

__all__ = ["COMMAND"]

_EPILOG = """\b
Examples:
  powerinfer orchestrate eval --simulated 1
  powerinfer orchestrate eval --pool pool.toml --allow execute_python --learn 50
  powerinfer orchestrate eval -m smollm2 --tasks reasoning-gym:chain_sum,gcd --limit 40
  powerinfer orchestrate eval --pool pool.toml --tasks ./tasks.jsonl --json

\b
Tasks are one of
  generated[:KIND,...]        of our own, worded as no training task is
  reasoning-gym:NAME,...      needs the extra orchestra
  FILE                        JSON lines: {"question": "2 + 2?", "gold": "4"}; also
                              id, check (exact, numeric, normalized), kind, documents,
                              databases, parts

Beside the policy there are always: every worker and primitive alone, cheapest, strongest
and random; after learning also a table by kind of task (which is told the kind), a bandit
and one that always splits. A simulated pool has workers of known truth, so the best
possible reward and the regret are exact; without -m no policy decides there.
Reward: 0 if wrong, else 1 - a + a R, with a of --cost-weight and R from 1 (cheap) to 0.
"""


@click.command("eval", epilog=_EPILOG)
@option("--tasks TASKS", "Tasks to do, see below.", default="generated", show_default=True)
@option("--limit N", "Number of tasks.", click.IntRange(1), default=100, show_default=True)
@pool_option
@option("--simulated SEED", "Simulate the pool of this seed.", click.IntRange(0))
@option(
    "--learn N",
    "Tasks that the learning baselines try every worker on. [default: 100 if simulated, else 0]",
    click.IntRange(0),
)
@option("--cost-weight A", "Weight of cost in the reward.", click.FloatRange(0, 1), default=0.1)
@option(
    "--second-price P",
    "Price of a second, in the pool's currency; a simulated pool has its own.",
    click.FloatRange(0),
    default=1.0,
)
@option("--ablations", "Also let the policy do without splitting, routing and verification.")
@option("-s --seed N", "Seed of tasks and of the random baseline.", click.IntRange(0), default=0)
@model_option
@permissions_options
@flags("context_length", "threads")
@json_option
def orchestrate_eval(
    tasks: str,
    limit: int,
    pool: Path | None,
    simulated: int | None,
    learn: int | None,
    cost_weight: float,
    second_price: float,
    ablations: bool,
    seed: int,
    model: Path | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Measure how well a policy divides tasks."""
    if pool is not None and (model is not None or simulated is not None):
        raise click.UsageError("give one of --pool and -m, or --simulated with or without -m")
    from powerinfer.cli.report.orchestra_evaluation import (
        print_report,
        run_real,
        run_simulated,
    )
    from powerinfer.orchestra.evaluation.evaluate import Comparison
    from powerinfer.orchestra.evaluation.sources import find_tasks

    if learn is None:
        learn = 0 if simulated is None else 100
    comparison = Comparison(
        tasks=find_tasks(tasks, limit, seed),
        to_learn=find_tasks(tasks, learn, seed, to_learn=True) if learn else (),
        cost_weight=cost_weight,
        second_price=second_price,
        seed=seed,
    )
    name = None if model is None else str(model)
    if simulated is not None:
        report = run_simulated(comparison, simulated, name, llm_options(flags), ablated=ablations)
    else:
        from powerinfer.orchestra.orchestra import open_pool

        opened = open_pool(pool, name)
        permissions = permissions_of(flags, opened)
        report = run_real(comparison, opened, permissions, llm_options(flags), ablated=ablations)
    print_report(report, as_json=as_json)


COMMAND = orchestrate_eval
