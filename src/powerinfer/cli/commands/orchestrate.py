"""Divide a task among models and tools: plan, route, verify, answer.

The tree of what happens goes to stderr, the answer to stdout.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from powerinfer.cli.files import STDIN, PathType, read_prompt_bytes
from powerinfer.cli.flags.flags import flags, llm_options
from powerinfer.cli.flags.options import (
    json_option,
    model_option,
    option,
    print_json,
)
from powerinfer.cli.orchestra import permissions_of, permissions_options, pool_option

if TYPE_CHECKING:
    from powerinfer.orchestra.orchestra import Orchestra
    from powerinfer.orchestra.runtime import Event, Outcome

__all__ = ["COMMAND"]

_EPILOG = """\b
Examples:
  powerinfer orchestrate -m smollm2 -p 'What is 17 * 23?'
  powerinfer orchestrate --pool pool.toml -p 'Sum the prices' --document prices.csv
  powerinfer orchestrate -m smollm2 -p 'Print 2**100' --allow execute_python --json
  powerinfer orchestrate pool --pool pool.toml --measure

\b
pool.toml:
  [[worker]]
  name = "small"
  model = "smollm2"
  primitives = ["direct_answer", "reason"]
  [[worker]]
  name = "tools"
  primitives = ["symbolic_math", "parse_structured"]

The policy is the first model of the pool that runs on this machine, or the one that
`policy = NAME` names. Without a pool there is one model, that of -m, and the tools.
"""


@click.command(epilog=_EPILOG)
@option("-p --prompt TASK", "Task, in words.")
@option("-f --file PATH", "Read the task from a file or pipe; - is stdin.", PathType())
@pool_option
@model_option
@permissions_options
@option("--trajectory FILE", "Append the run to a file of JSON lines.", PathType())
@option(
    "--temp --temperature T",
    "Temperature of the policy; 0 always takes the likeliest.",
    click.FloatRange(0),
    name="temperature",
    default=0.0,
)
@option("-s --seed N", "Seed of the policy.", click.IntRange(0))
@flags("context_length", "threads")
@json_option
def orchestrate(
    prompt: str | None,
    file: Path | None,
    pool: Path | None,
    model: Path | None,
    trajectory: Path | None,
    temperature: float,
    seed: int | None,
    as_json: bool,
    **flags: Any,
) -> None:
    """Divide a task among models and tools."""
    from powerinfer.cli.report.orchestra import print_event, print_ledger
    from powerinfer.orchestra.orchestra import Orchestra, open_pool
    from powerinfer.orchestra.trajectory import append_trajectory

    task = _task(prompt, file)
    if pool is not None and model is not None:
        raise click.UsageError("a pool names its models: give either --pool or -m")
    opened = open_pool(pool, None if model is None else str(model))
    with Orchestra(
        opened,
        permissions=permissions_of(flags, opened),
        temperature=temperature,
        seed=seed,
        **llm_options(flags),
    ) as orchestra:
        if trajectory is not None:
            append_trajectory(trajectory)
        outcome = orchestra.run(task, _ignore if as_json else print_event)
        if trajectory is not None:
            append_trajectory(trajectory, _row(orchestra, outcome))
    if as_json:
        print_json({"answer": outcome.answer, **_row(orchestra, outcome)})
    elif not outcome.error:
        click.echo(outcome.answer)
        print_ledger(outcome, opened)
    if outcome.error:
        raise click.ClickException(outcome.error)


def _task(prompt: str | None, file: Path | None) -> str:
    if (prompt is None) == (file is None):
        raise click.UsageError("give the task with -p 'TASK' or with -f FILE")
    read = prompt if file is None else read_prompt_bytes(file).decode("utf-8", "replace")
    task = (read or "").strip()
    if not task:
        raise click.UsageError("the task is empty" + (" on stdin" if file == STDIN else ""))
    return task


def _row(orchestra: "Orchestra", outcome: "Outcome") -> dict[str, object]:
    from powerinfer.orchestra.policy import system_prompt
    from powerinfer.orchestra.pool import offers
    from powerinfer.orchestra.trajectory import trajectory

    players = orchestra.players
    offered = offers(players.pool, players.primitives, players.permissions)
    system = system_prompt(players.pool, players.primitives, offered, players.permissions)
    return trajectory(outcome, orchestra.pool, system)


def _ignore(_: "Event") -> None:
    """With --json, nothing is shown while it happens."""


COMMAND = orchestrate
