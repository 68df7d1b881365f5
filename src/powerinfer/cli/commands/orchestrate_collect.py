"""Collect trajectories for training, by a search over routes."""

from pathlib import Path
from typing import Any

import click

from powerinfer.cli.files import PathType
from powerinfer.cli.flags.flags import flags, llm_options
from powerinfer.cli.flags.options import json_option, model_option, option, print_json
from powerinfer.cli.orchestra import permissions_of, permissions_options, pool_option
from powerinfer.cli.report.progress import ProgressBar

__all__ = ["COMMAND"]

_EPILOG = """\b
Examples:
  powerinfer orchestrate collect --simulated 1 -o runs.jsonl
  powerinfer orchestrate collect --pool pool.toml --limit 50 -o runs.jsonl

Every task is done by several pairs of worker and primitive, where others take over what
fails, and split in two. All runs are kept; a bad one says why in `reason`. The same
command continues where it was stopped. Tasks are those of `orchestrate eval`, worded for
training and never the same.
"""


@click.command("collect", epilog=_EPILOG)
@option("-o --output FILE", "JSON lines to append to.", PathType(), required=True)
@option(
    "--tasks TASKS",
    "Tasks to do: generated[:KIND,...] or reasoning-gym:NAME,...",
    default="generated",
    show_default=True,
)
@option("--limit N", "Number of tasks.", click.IntRange(1), default=100, show_default=True)
@option("--tries N", "Pairs that do each task, and splits.", click.IntRange(1), default=3)
@pool_option
@option("--simulated SEED", "Simulate the pool of this seed.", click.IntRange(0))
@option("-s --seed N", "Seed of tasks and of the search.", click.IntRange(0), default=0)
@model_option
@permissions_options
@flags("context_length", "threads")
@json_option
def orchestrate_collect(
    output: Path,
    tasks: str,
    limit: int,
    tries: int,
    pool: Path | None,
    simulated: int | None,
    seed: int,
    model: Path | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Collect trajectories for training."""
    if sum(each is not None for each in (pool, model, simulated)) > 1:
        raise click.UsageError("give one of --pool, -m and --simulated")
    from powerinfer.cli.report.orchestra_evaluation import check_kinds
    from powerinfer.orchestra.evaluation.collecting import collect
    from powerinfer.orchestra.evaluation.sources import find_tasks
    from powerinfer.orchestra.evaluation.stages import real_stage, simulated_stage
    from powerinfer.orchestra.evaluation.truth import simulate_pool
    from powerinfer.orchestra.orchestra import open_pool

    found = find_tasks(tasks, limit, seed, to_learn=True)
    if simulated is not None:
        truth = simulate_pool(simulated)
        check_kinds(truth, found)
        opening = simulated_stage(truth)
    else:
        opened = open_pool(pool, None if model is None else str(model))
        opening = real_stage(opened, permissions_of(flags, opened), seed, **llm_options(flags))
    with opening as stage, ProgressBar("collecting", unit="tasks") as bar:
        count = collect(
            stage, found, output, tries=tries, seed=seed, progress=lambda _, *done: bar(*done)
        )
    if as_json:
        print_json({"new": count, "file": str(output)})
    else:
        click.echo(f"{count} new runs in {output}")


COMMAND = orchestrate_collect
