"""The grammar of the next action, generated from the state and the pool, as llguidance's Lark.

A policy that follows it cannot break the protocol, however small its model is. It bounds the form
of an action, not the choice.
"""

import json
from collections.abc import Iterator, Sequence

from powerinfer.orchestra.actions import TAGS
from powerinfer.orchestra.rules import Offers
from powerinfer.orchestra.state import Next

__all__ = ["action_grammar"]

# Characters of texts.
_LONGEST = {"subtask": 160, "route": 400, "verify": 120, "final_answer": 2000}


def _any_case(letter: str) -> str:
    return letter + letter.upper()


# A character, or `<` and what makes it no tag of ours: two other letters.
_PIECE = "|".join(
    [
        "[^<]",
        rf"<+\/?[^\/<{''.join(_any_case(each[0]) for each in TAGS)}]",
        *(rf"<+\/?[{_any_case(each[0])}][^{_any_case(each[1])}<]" for each in TAGS),
    ]
)
_SKILL = '" skill="'
_END = json.dumps('">')


def action_grammar(due: Next, offers: Offers, scale: float = 1.0) -> str:
    """Write the grammar of one action, from its first tag to its last.

    Args:
        due: what may come; not nothing.
        offers: who may be routed to.
        scale: multiplies the longest lengths of texts, for small contexts.
    """
    rules = dict(_rules(due, offers))
    if not rules:
        raise ValueError("nothing may come next")
    start = " | ".join(name for name in ("plan", "route", "verify", "answer") if name in rules)
    lines = [f"{name}: {body}" for name, body in rules.items()]
    terminals = (
        line for tag in _LONGEST for line in _text(tag, scale) if f"{tag}_text" in str(lines)
    )
    return "\n".join(["%llguidance {}", f"start: {start}", *lines, *terminals]) + "\n"


def _rules(due: Next, offers: Offers) -> Iterator[tuple[str, str]]:
    if due.may_answer:
        yield "answer", '"<final_answer>" final_answer_text'
    if due.most_subtasks:
        yield from _plan(due)
    if due.to_route is not None:
        pairs = " | ".join(
            f"{_quoted(worker + _SKILL)} ({' | '.join(map(_quoted, sorted(primitives)))})"
            for worker, primitives in offers.items()
            if primitives
        )
        head = f'<route round="{due.round}" subtask="{due.to_route.id}" model="'
        yield "route", f"{_quoted(head)} pair {_END} route_text"
        yield "pair", pairs
    if due.must_verify:
        status = _quoted('pass">')
        if due.to_verify:
            repair = _quoted('repair_needed" target="')
            status = f"({status} | {repair} target {_END})"
            yield from _rising("target", due.to_verify)
        head = f'<verify round="{due.round}" status="'
        yield "verify", f"{_quoted(head)} {status} verify_text"


def _plan(due: Next) -> Iterator[tuple[str, str]]:
    """A plan of one subtask or more, each of which may depend on all before it."""
    begin, end = _quoted(f'<plan round="{due.round}">\n'), _quoted("</plan>")
    yield "plan", f"{begin} subtasks_{due.first_id} {end}"
    last = due.first_id + due.most_subtasks - 1
    for number in range(due.first_id, last + 1):
        known = (*due.known, *range(due.first_id, number))
        depends_on = f"depends_{number}?" if known else ""
        head = _quoted(f'  <subtask id="{number}" depends_on="')
        more = f" subtasks_{number + 1}?" if number < last else ""
        body = f'{head} {depends_on} {_END} subtask_text "\\n"{more}'
        yield f"subtasks_{number}", body
        if known:
            yield from _rising(f"depends_{number}", known)


def _rising(name: str, ids: Sequence[int]) -> Iterator[tuple[str, str]]:
    """A list of at least one of these ids, in their order."""
    yield name, " | ".join(f"{name}_at_{index}" for index in range(len(ids)))
    for index, number in enumerate(ids):
        later = " | ".join(f"{name}_at_{each}" for each in range(index + 1, len(ids)))
        yield f"{name}_at_{index}", f'"{number}"' + (f' ("," ({later}))?' if later else "")


def _text(tag: str, scale: float) -> Iterator[str]:
    """A text and the tag that ends it; `<` is not followed by the beginning of another tag."""
    name, longest = f"{tag.upper()}_TEXT", round(scale * _LONGEST[tag])
    yield f"{tag}_text[lazy]: {name}"
    yield rf"{name}: /[^\s<]({_PIECE}){{0,{longest - 1}}}<\/{tag}>/"


def _quoted(text: str) -> str:
    return json.dumps(text)
