"""What a policy writes and reads: plans, routes, verdicts, answers, observations, and their text.

The text is that of Uno-Orchestra (arXiv 2605.05007), whose parser reads ours.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from powerinfer.errors import PowerInferError

__all__ = [
    "MOST_ROUNDS",
    "MOST_ROUTES",
    "TAGS",
    "Action",
    "Element",
    "FinalAnswer",
    "Obs",
    "Plan",
    "ProtocolError",
    "Route",
    "Subtask",
    "Turn",
    "Verify",
    "parse_elements",
    "text_of",
    "without_tags",
]

MOST_ROUTES = 8
MOST_ROUNDS = 3
TAGS = ("plan", "subtask", "route", "verify", "final_answer", "obs")


class ProtocolError(PowerInferError):
    """A policy wrote something that the protocol does not allow there."""


@dataclass(frozen=True, slots=True)
class Subtask:
    """A part of a task; it gets the results of `depends_on`."""

    id: int
    depends_on: tuple[int, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Plan:
    """How a task is split; later rounds repair the result."""

    round: int
    subtasks: tuple[Subtask, ...]


@dataclass(frozen=True, slots=True)
class Route:
    """Who does a subtask: the pair of a worker and a primitive, with a query for them."""

    round: int
    subtask: int
    worker: str
    primitive: str
    query: str


@dataclass(frozen=True, slots=True)
class Verify:
    """Verdict on a round; without a `target` it passes, else those subtasks need repair."""

    round: int
    target: tuple[int, ...]
    reason: str

    @property
    def passes(self) -> bool:
        """True if the answer follows."""
        return not self.target


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """The answer to the task."""

    text: str


@dataclass(frozen=True, slots=True)
class Obs:
    """What came of a route."""

    subtask: int
    text: str


Action: TypeAlias = Plan | Route | Verify | FinalAnswer
Element: TypeAlias = Action | Obs


@dataclass(frozen=True, slots=True)
class Turn:
    """Consecutive elements of one role: the policy is the assistant, workers are tools."""

    role: Literal["assistant", "tool"]
    elements: tuple[Element, ...]

    @property
    def text(self) -> str:
        """The elements as a policy reads them."""
        return "\n".join(map(text_of, self.elements))


# Two letters tell them apart; the grammar of actions excludes the same.
_TAG = re.compile(rf"<(?=/?(?:{'|'.join(each[:2] for each in TAGS)}))", re.IGNORECASE)


def without_tags(text: str) -> str:
    """Make tags of the protocol in a text harmless: their `<` becomes a quotation mark."""
    return _TAG.sub("\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}", text)


def text_of(element: Element) -> str:
    """Write an element; whatever its texts contain, they end where the element ends."""
    match element:
        case Plan(number, subtasks):
            inner = "".join(
                f'  <subtask id="{each.id}" depends_on="{_list(each.depends_on)}">'
                f"{without_tags(each.text)}</subtask>\n"
                for each in subtasks
            )
            return f'<plan round="{number}">\n{inner}</plan>'
        case Route(number, subtask, worker, primitive, query):
            return (
                f'<route round="{number}" subtask="{subtask}" model="{worker}" '
                f'skill="{primitive}">{without_tags(query)}</route>'
            )
        case Verify(number, target, reason):
            status = f'repair_needed" target="{_list(target)}' if target else "pass"
            return f'<verify round="{number}" status="{status}">{without_tags(reason)}</verify>'
        case FinalAnswer(text):
            return f"<final_answer>{without_tags(text)}</final_answer>"
        case Obs(subtask, text):
            return f'<obs subtask="{subtask}">{without_tags(text)}</obs>'


_IDS = r"(?:\d{1,4}(?:,\d{1,4})*)?"
_NUMBER = r"\d{1,4}"
_SUBTASK = re.compile(
    rf'\s*<subtask id="({_NUMBER})" depends_on="({_IDS})">(.*?)</subtask>\s*', re.DOTALL
)
_ELEMENT = re.compile(
    rf"""\s*(?:
    <plan\ round="(?P<plan>{_NUMBER})">(?P<subtasks>.*?)</plan>
    |<route\ round="(?P<route>{_NUMBER})"\ subtask="(?P<routed>{_NUMBER})"
        \ model="(?P<worker>[^"]*)"\ skill="(?P<primitive>[^"]*)">(?P<query>.*?)</route>
    |<verify\ round="(?P<verify>{_NUMBER})"\ status="(?P<status>pass|repair_needed)"
        (?:\ target="(?P<target>{_IDS})")?>(?P<reason>.*?)</verify>
    |<final_answer>(?P<answer>.*?)</final_answer>
    |<obs\ subtask="(?P<observed>{_NUMBER})">(?P<observation>.*?)</obs>
    )\s*""",
    re.DOTALL | re.VERBOSE,
)


def parse_elements(text: str) -> tuple[Element, ...]:
    """Read the elements of a turn.

    Raises:
        ProtocolError: there is anything else between them.
    """
    elements: list[Element] = []
    position = 0
    while position < len(text):
        found = _ELEMENT.match(text, position)
        if found is None:
            raise ProtocolError(f"expected an element of the protocol, got {text[position:]!r:.60}")
        elements.append(_element(found))
        position = found.end()
    return tuple(elements)


def _element(found: "re.Match[str]") -> Element:
    parts = found.groupdict()
    if parts["plan"] is not None:
        return Plan(int(parts["plan"]), _subtasks(parts["subtasks"]))
    if parts["route"] is not None:
        worker, primitive, query = parts["worker"], parts["primitive"], parts["query"]
        return Route(int(parts["route"]), int(parts["routed"]), worker, primitive, query)
    if parts["verify"] is not None:
        target = _ids(parts["target"] or "")
        if bool(target) != (parts["status"] == "repair_needed"):
            raise ProtocolError(
                f"a repair names its targets, a pass none: {found[0].strip()!r:.90}"
            )
        return Verify(int(parts["verify"]), target, parts["reason"])
    if parts["answer"] is not None:
        return FinalAnswer(parts["answer"])
    return Obs(int(parts["observed"]), parts["observation"])


def _subtasks(text: str) -> tuple[Subtask, ...]:
    subtasks: list[Subtask] = []
    position = 0
    while position < len(text.rstrip()):
        found = _SUBTASK.match(text, position)
        if found is None:
            raise ProtocolError(f"expected a subtask in the plan, got {text[position:]!r:.60}")
        subtasks.append(Subtask(int(found[1]), _ids(found[2]), found[3]))
        position = found.end()
    return tuple(subtasks)


def _ids(text: str) -> tuple[int, ...]:
    return tuple(int(each) for each in text.split(",") if each)


def _list(ids: Sequence[int]) -> str:
    return ",".join(map(str, ids))
