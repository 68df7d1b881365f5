"""A run of an orchestra as text: a tree while it happens, then the ledger."""

from typing import TYPE_CHECKING

import click

from powerinfer.cli.report.progress import clear_line
from powerinfer.cli.report.tables import print_table, printable

if TYPE_CHECKING:
    from powerinfer.orchestra.pool import Pool
    from powerinfer.orchestra.runtime import Event, Outcome

__all__ = ["print_event", "print_ledger"]


def print_event(event: "Event") -> None:
    """Print an event on stderr as it happens."""
    from powerinfer.orchestra.trace import event_lines

    clear_line()
    for line in event_lines(event):
        # Models and files must not steer the terminal.
        click.echo(printable(line), err=True)


def print_ledger(outcome: "Outcome", pool: "Pool") -> None:
    """Print on stderr what a run cost, and what other ways would have."""
    ledger = outcome.ledger
    rows = [("step", "worker", "skill", "prompt", "tokens", "seconds", "price")]
    for step in ledger.steps:
        number = "" if step.subtask is None else str(step.subtask)
        counts = (str(step.prompt_tokens), str(step.tokens))
        price = f"{step.price:.6g}"
        rows.append((number, step.worker, step.primitive, *counts, f"{step.seconds:.2f}", price))
    total = (str(ledger.prompt_tokens), str(ledger.tokens), f"{ledger.seconds:.2f}")
    rows.append(("all", "", "", *total, f"{ledger.price:.6g}"))
    print_table(rows, left=(0, 1, 2), err=True)
    ways = ledger.other_ways(pool, {each.name: each.primitives for each in pool.workers})
    described = ", ".join(
        f"{name} {'unknown' if way.seconds is None else f'{way.seconds:.2f} s'}"
        + (f" and {way.price:.6g}" if way.price else "")
        for name, way in ways.items()
    )
    click.echo(f"took {outcome.seconds:.2f} s; estimates of other ways: {described}", err=True)
