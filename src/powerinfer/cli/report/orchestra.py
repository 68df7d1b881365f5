"""A run of an orchestra as text: a tree while it happens, then the ledger."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from powerinfer.cli.report.progress import clear_line
from powerinfer.cli.report.tables import print_table, printable

if TYPE_CHECKING:
    from powerinfer.orchestra.actions import Action
    from powerinfer.orchestra.ledger import Step
    from powerinfer.orchestra.pool import Pool
    from powerinfer.orchestra.runtime import Event, Outcome

__all__ = ["event_lines", "print_event", "print_ledger"]

_LONGEST = 200


def print_event(event: "Event") -> None:
    """Print an event on stderr as it happens."""
    clear_line()
    for line in event_lines(event):
        click.echo(line, err=True)


def event_lines(event: "Event") -> Iterator[str]:
    """Describe an event in lines of a tree; texts are shortened and cannot steer a terminal."""
    from powerinfer.orchestra.runtime import Acted

    if isinstance(event, Acted):
        yield from _action_lines(event.action)
        return
    found, route = event.observation, event.route
    mark = "=" if found.ok else "!"
    untrusted = " (untrusted)" if found.untrusted else ""
    yield f"  {mark} {route.subtask}{untrusted}: {_short(found.text)}  [{_spent(event.step)}]"


def _action_lines(action: "Action") -> Iterator[str]:
    from powerinfer.orchestra.actions import Plan, Route, Verify

    if isinstance(action, Plan):
        yield f"plan {action.round}"
        for subtask in action.subtasks:
            after = ", ".join(map(str, subtask.depends_on))
            yield f"  {subtask.id}. {_short(subtask.text)}" + (f" (after {after})" if after else "")
    elif isinstance(action, Route):
        who = f"{action.worker} {action.primitive}"
        yield f"  {action.subtask} > {who}: {_short(action.query)}"
    elif isinstance(action, Verify):
        target = ", ".join(map(str, action.target))
        status = f"repair of {target}" if target else "pass"
        yield f"verdict {action.round}: {status}: {_short(action.reason)}"


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


def _spent(step: "Step") -> str:
    tokens = f"{step.tokens} tokens, " if step.tokens else ""
    return f"{tokens}{step.seconds:.2f} s"


def _short(text: str) -> str:
    line = printable(" ".join(text.split()))
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."
