"""The 16 rules of a valid trajectory, each named after what it forbids.

They are those of Uno-Orchestra's schema, in its order. The grammar of the next action makes all
violations impossible; this function checks trajectories from anywhere.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias

from powerinfer.orchestra.actions import (
    MOST_ROUNDS,
    MOST_ROUTES,
    Element,
    FinalAnswer,
    Obs,
    Plan,
    Route,
    Turn,
    Verify,
)

__all__ = ["RULES", "Offers", "Violation", "violations"]

Offers: TypeAlias = Mapping[str, Collection[str]]
"""By worker, the primitives that it may do."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule by its name, and what broke it."""

    rule: str
    what: str


@dataclass(frozen=True)
class _Trajectory:
    turns: tuple[Turn, ...]
    offers: Offers

    @cached_property
    def elements(self) -> tuple[Element, ...]:
        return tuple(each for turn in self.turns for each in turn.elements)

    @cached_property
    def plans(self) -> tuple[Plan, ...]:
        return tuple(each for each in self.elements if isinstance(each, Plan))

    @cached_property
    def routes(self) -> tuple[Route, ...]:
        return tuple(each for each in self.elements if isinstance(each, Route))

    @cached_property
    def verdicts(self) -> tuple[Verify, ...]:
        return tuple(each for each in self.elements if isinstance(each, Verify))

    @cached_property
    def round_of(self) -> dict[int, int]:
        """Rounds by subtask."""
        return {each.id: plan.round for plan in self.plans for each in plan.subtasks}

    def after(self, element: Element) -> Element | None:
        """The element that follows this one, compared by identity."""
        for one, following in pairwise(self.elements):
            if one is element:
                return following
        return None

    def declared_before(self, element: Element) -> set[int]:
        """Subtasks of the plans before an element."""
        ids: set[int] = set()
        for each in self.elements:
            if each is element:
                break
            if isinstance(each, Plan):
                ids |= {subtask.id for subtask in each.subtasks}
        return ids


_Found: TypeAlias = Iterator[str]
_Rule: TypeAlias = Callable[[_Trajectory], _Found]


def _other_than_one_answer_at_the_end(all_: _Trajectory) -> _Found:
    count = sum(isinstance(each, FinalAnswer) for each in all_.elements)
    if count != 1:
        yield f"{count} answers"
    elif all_.turns[-1].role != "assistant" or not isinstance(all_.elements[-1], FinalAnswer):
        yield "the answer is not the end of the last assistant turn"


def _begin_without_answer_or_plan(all_: _Trajectory) -> _Found:
    first = next((turn.elements for turn in all_.turns if turn.role == "assistant"), ())
    is_lazy = len(first) == 1 and isinstance(first[0], FinalAnswer)
    is_planned = (
        len(first) > 1
        and isinstance(first[0], Plan)
        and first[0].round == 1
        and len(first[0].subtasks) > 0
        and all(isinstance(each, Route) and each.round == 1 for each in first[1:])
    )
    if not is_lazy and not is_planned:
        yield "the first turn is neither an answer nor plan 1 with its routes"


def _round_out_of_order(all_: _Trajectory) -> _Found:
    for expected, plan in enumerate(all_.plans, 1):
        if plan.round != expected:
            yield f"plan {plan.round} where {expected} is due"


def _subtask_id_not_rising(all_: _Trajectory) -> _Found:
    ids = [each.id for plan in all_.plans for each in plan.subtasks]
    for before, after in pairwise(ids):
        if after <= before:
            yield f"subtask {after} after {before}"


def _undeclared_dependency(all_: _Trajectory) -> _Found:
    declared: set[int] = set()
    for plan in all_.plans:
        for subtask in plan.subtasks:
            for each in subtask.depends_on:
                # Only what was declared before may be named, so there are no cycles.
                if each not in declared:
                    yield f"subtask {subtask.id} depends on {each}"
            declared.add(subtask.id)


def _route_without_one_observation(all_: _Trajectory) -> _Found:
    observed = Counter(each.subtask for each in all_.elements if isinstance(each, Obs))
    routed = Counter(each.subtask for each in all_.routes)
    for subtask in routed | observed:
        if routed[subtask] != 1 or observed[subtask] != 1:
            yield f"subtask {subtask}: {routed[subtask]} routes, {observed[subtask]} observations"


def _route_in_another_round(all_: _Trajectory) -> _Found:
    for route in all_.routes:
        if all_.round_of.get(route.subtask) != route.round:
            yield f"route of subtask {route.subtask} in round {route.round}"


def _verdict_not_after_observations(all_: _Trajectory) -> _Found:
    """A verdict follows the last observation of its round, and that is followed by it."""
    for index, element in enumerate(all_.elements):
        before = all_.elements[index - 1] if index else None
        if isinstance(element, Verify):
            missing = {each.subtask for each in all_.routes if each.round == element.round} - {
                each.subtask for each in all_.elements[:index] if isinstance(each, Obs)
            }
            is_next = isinstance(before, Obs) and all_.round_of.get(before.subtask) == element.round
            if missing or not is_next:
                yield f"verdict of round {element.round}"
        elif isinstance(before, Obs) and not isinstance(element, Obs):
            yield f"no verdict after the observation of subtask {before.subtask}"


def _pass_without_answer(all_: _Trajectory) -> _Found:
    for verdict in all_.verdicts:
        if verdict.passes and not isinstance(all_.after(verdict), FinalAnswer):
            yield f"round {verdict.round}"


def _repair_without_plan(all_: _Trajectory) -> _Found:
    for verdict in all_.verdicts:
        following = all_.after(verdict)
        is_due = isinstance(following, Plan) and following.round == verdict.round + 1
        if not verdict.passes and not is_due:
            yield f"round {verdict.round}"


def _repair_of_unknown_subtask(all_: _Trajectory) -> _Found:
    for verdict in all_.verdicts:
        is_rising = all(one < other for one, other in pairwise(verdict.target))
        if not is_rising or not set(verdict.target) <= all_.declared_before(verdict):
            yield f"round {verdict.round}: {verdict.target}"


def _unknown_worker_or_primitive(all_: _Trajectory) -> _Found:
    for route in all_.routes:
        if route.primitive not in all_.offers.get(route.worker, ()):
            yield f"{route.worker!r} with {route.primitive!r}"


def _more_than_8_routes(all_: _Trajectory) -> _Found:
    if len(all_.routes) > MOST_ROUTES:
        yield f"{len(all_.routes)} routes"


def _more_than_3_rounds(all_: _Trajectory) -> _Found:
    if len(all_.plans) > MOST_ROUNDS:
        yield f"{len(all_.plans)} rounds"


def _observation_by_assistant(all_: _Trajectory) -> _Found:
    for turn in all_.turns:
        if turn.role != "tool" and any(isinstance(each, Obs) for each in turn.elements):
            yield "an observation in an assistant turn"


def _action_by_tool(all_: _Trajectory) -> _Found:
    for turn in all_.turns:
        if turn.role != "assistant" and not all(isinstance(each, Obs) for each in turn.elements):
            yield "an action in a tool turn"


_RULES: tuple[_Rule, ...] = (
    _other_than_one_answer_at_the_end,
    _begin_without_answer_or_plan,
    _round_out_of_order,
    _subtask_id_not_rising,
    _undeclared_dependency,
    _route_without_one_observation,
    _route_in_another_round,
    _verdict_not_after_observations,
    _pass_without_answer,
    _repair_without_plan,
    _repair_of_unknown_subtask,
    _unknown_worker_or_primitive,
    _more_than_8_routes,
    _more_than_3_rounds,
    _observation_by_assistant,
    _action_by_tool,
)
RULES = tuple(rule.__name__.removeprefix("_") for rule in _RULES)


def violations(turns: Sequence[Turn], offers: Offers) -> tuple[Violation, ...]:
    """List the violations of a whole trajectory, by rule.

    Args:
        turns: those of the policy and of the workers, without system prompt and task.
        offers: what the pool offers.
    """
    trajectory = _Trajectory(tuple(turns), offers)
    return tuple(
        Violation(name, what)
        for name, rule in zip(RULES, _RULES, strict=True)
        for what in rule(trajectory)
    )
