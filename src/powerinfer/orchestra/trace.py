"""Events of a run as lines of a tree, for people."""

from collections.abc import Iterator

from powerinfer.orchestra.actions import Action, Plan, Route, Verify
from powerinfer.orchestra.ledger import Step
from powerinfer.orchestra.runtime import Acted, Event

__all__ = ["event_lines"]

_LONGEST = 200


def event_lines(event: Event) -> Iterator[str]:
    """Describe an event in lines of a tree; texts are shortened to one line."""
    if isinstance(event, Acted):
        yield from _action_lines(event.action)
        return
    found, route = event.observation, event.route
    mark = "=" if found.ok else "!"
    untrusted = " (untrusted)" if found.untrusted else ""
    yield f"  {mark} {route.subtask}{untrusted}: {_short(found.text)}  [{_spent(event.step)}]"


def _action_lines(action: Action) -> Iterator[str]:
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


def _spent(step: Step) -> str:
    tokens = f"{step.tokens} tokens, " if step.tokens else ""
    return f"{tokens}{step.seconds:.2f} s"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."
