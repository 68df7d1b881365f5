"""Show the workers of a pool, or measure what they cost."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from powerinfer.cli.flags.flags import flags, llm_options
from powerinfer.cli.flags.options import json_option, model_option, option, print_json
from powerinfer.cli.orchestra import pool_option
from powerinfer.cli.report.progress import ProgressBar
from powerinfer.cli.report.tables import print_table

if TYPE_CHECKING:
    from powerinfer.orchestra.pool import Cost, Pool

__all__ = ["COMMAND"]

_EPILOG = """\b
Examples:
  powerinfer orchestrate pool --pool pool.toml
  powerinfer orchestrate pool --pool pool.toml --measure

With --measure each model answers three short questions: seconds per token, memory, and
joules where the processor tells them are written into the pool's file. Prices and
everything else in it stay as they are.
"""


@click.command("pool", epilog=_EPILOG)
@pool_option
@model_option
@option("--measure", "Measure the models, and write their costs into the file.")
@flags("context_length", "threads")
@json_option
def orchestrate_pool(
    pool: Path | None, model: Path | None, measure: bool, as_json: bool, **flags: Any
) -> None:
    """Show the workers of a pool, or measure what they cost."""
    from powerinfer.orchestra.orchestra import open_pool

    if pool is not None and model is not None:
        raise click.UsageError("a pool names its models: give either --pool or -m")
    opened = open_pool(pool, None if model is None else str(model))
    if measure:
        costs = _measured(opened, flags)
        opened = opened.with_costs(costs)
        if pool is not None:
            from powerinfer.orchestra.measuring import write_costs

            write_costs(pool, costs)
    if as_json:
        workers = [
            {**asdict(each), "is_policy": each.name == opened.policy} for each in opened.workers
        ]
        print_json({"workers": workers})
    else:
        _print(opened)


def _measured(pool: "Pool", flags: dict[str, Any]) -> "dict[str, Cost]":
    """Measure all models; one that cannot answer keeps its cost, and a line says why."""
    from powerinfer.orchestra.orchestra import Orchestra
    from powerinfer.orchestra.workers.worker import WorkerError

    costs: dict[str, Cost] = {}
    with (
        Orchestra(pool, **llm_options(flags)) as orchestra,
        ProgressBar("measuring", unit="workers") as bar,
    ):
        for number, worker in enumerate(pool.workers):
            bar(number, len(pool.workers))
            try:
                cost = orchestra.measure(worker.name)
            except WorkerError as error:
                click.echo(f"{worker.name} was not measured: {error.message}", err=True)
                continue
            if cost is not None:
                costs[worker.name] = cost
    return costs


def _print(pool: "Pool") -> None:
    rows = [("worker", "where", "skills", "s/prompt token", "s/token", "J/token", "MiB", "price/M")]
    for worker in pool.workers:
        where = (
            worker.base_url or (worker.model if worker.model != "" else "embedded model") or "tool"
        )
        cost = worker.cost
        rows.append(
            (
                worker.name + (" (policy)" if worker.name == pool.policy else ""),
                where,
                ", ".join(worker.primitives),
                _cell(cost.seconds_per_prompt_token),
                _cell(cost.seconds_per_token),
                _cell(cost.joules_per_token),
                _cell(round(cost.resident_bytes / 2**20)),
                _cell(cost.price_per_million_tokens),
            )
        )
    print_table(rows, left=(0, 1, 2))


def _cell(value: float) -> str:
    return f"{value:.4g}" if value else "-"


COMMAND = orchestrate_pool
