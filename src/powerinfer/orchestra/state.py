"""Where a trajectory is, and what may come next: a pure value made of all elements so far."""

from dataclasses import dataclass, field
from functools import cached_property

from powerinfer.orchestra.actions import (
    MOST_ROUNDS,
    MOST_ROUTES,
    Action,
    Element,
    FinalAnswer,
    Obs,
    Plan,
    ProtocolError,
    Route,
    Subtask,
    Turn,
    Verify,
    text_of,
)
from powerinfer.orchestra.rules import Offers

__all__ = ["Next", "State"]


@dataclass(frozen=True, slots=True)
class Next:
    """What the policy may do next.

    Attributes:
        may_answer: give the final answer.
        most_subtasks: of a plan; 0: it may not plan.
        first_id: of the plan's subtasks, whose ids are consecutive.
        known: ids that its subtasks may depend on, besides each other.
        to_route: the subtask whose route is due.
        to_verify: routed subtasks that a verdict may send to repair; empty and `must_verify`: it
            can only pass.
        must_verify: a verdict is due.
        round: of the plan, route or verdict.
    """

    may_answer: bool = False
    most_subtasks: int = 0
    first_id: int = 1
    known: tuple[int, ...] = ()
    to_route: Subtask | None = None
    to_verify: tuple[int, ...] = ()
    must_verify: bool = False
    round: int = 1


@dataclass(frozen=True)
class State:
    """All elements so far.

    Every subtask of a plan gets a route, in order, so ids and routes go together: at most 8.

    Attributes:
        tainted: subtasks whose observations contain untrusted input.
    """

    elements: tuple[Element, ...] = ()
    tainted: frozenset[int] = field(default=frozenset())

    @cached_property
    def plans(self) -> tuple[Plan, ...]:
        """Plans so far."""
        return tuple(each for each in self.elements if isinstance(each, Plan))

    @cached_property
    def routes(self) -> tuple[Route, ...]:
        """Routes so far."""
        return tuple(each for each in self.elements if isinstance(each, Route))

    @cached_property
    def observations(self) -> dict[int, Obs]:
        """Observations so far, by subtask."""
        return {each.subtask: each for each in self.elements if isinstance(each, Obs)}

    @cached_property
    def answer(self) -> FinalAnswer | None:
        """The answer, once there is one."""
        last = self.elements[-1] if self.elements else None
        return last if isinstance(last, FinalAnswer) else None

    @property
    def round(self) -> int:
        """Number of the current round; 0 before the first."""
        return len(self.plans)

    @cached_property
    def subtasks(self) -> dict[int, Subtask]:
        """Subtasks so far, by id."""
        return {each.id: each for plan in self.plans for each in plan.subtasks}

    @property
    def unobserved(self) -> tuple[Route, ...]:
        """Routes without an observation yet."""
        return tuple(each for each in self.routes if each.subtask not in self.observations)

    @property
    def repairs(self) -> tuple[Route, ...]:
        """Routes that a verdict has sent to repair in this round."""
        verdicts = [each for each in self.elements if isinstance(each, Verify)]
        is_current = bool(verdicts) and verdicts[-1].round in (self.round, self.round - 1)
        target = verdicts[-1].target if is_current else ()
        return tuple(each for each in self.routes if each.subtask in target)

    def next(self, offers: Offers) -> Next:
        """Tell what may come next; workers' observations are due if it is nothing.

        Args:
            offers: who may be routed to now.
        """
        last = self.elements[-1] if self.elements else None
        room = (
            MOST_ROUTES - len(self.routes)
            if self.round < MOST_ROUNDS and any(offers.values())
            else 0
        )
        plan = Next(
            most_subtasks=room,
            first_id=len(self.subtasks) + 1,
            known=tuple(self.subtasks),
            round=self.round + 1,
        )
        match last:
            case None:
                return Next(may_answer=True, most_subtasks=room)
            case Plan() | Route():
                unrouted = [each for each in self.plans[-1].subtasks if not self._has_route(each)]
                return Next(to_route=unrouted[0], round=self.round) if unrouted else Next()
            case Obs():
                if self.unobserved:
                    return Next()
                ids = tuple(self.observations) if room else ()
                return Next(must_verify=True, to_verify=tuple(sorted(ids)), round=self.round)
            case Verify() if last.passes:
                return Next(may_answer=True)
            case Verify():
                return plan
            case FinalAnswer():
                return Next()

    def _has_route(self, subtask: Subtask) -> bool:
        return any(each.subtask == subtask.id for each in self.routes)

    def after(self, action: Action, offers: Offers) -> "State":
        """Add an action of the policy.

        Raises:
            ProtocolError: it may not come now.
        """
        due = self.next(offers)
        if not _is_allowed(action, due, offers):
            raise ProtocolError(f"this may not come now: {text_of(action)!r:.120}")
        return State((*self.elements, action), self.tainted)

    def observed(self, obs: Obs, *, is_tainted: bool) -> "State":
        """Add an observation.

        Raises:
            ProtocolError: its subtask has no route, or an observation already.
        """
        if all(each.subtask != obs.subtask for each in self.unobserved):
            raise ProtocolError(f"no observation of subtask {obs.subtask} is due")
        tainted = self.tainted | {obs.subtask} if is_tainted else self.tainted
        return State((*self.elements, obs), tainted)

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The elements in turns of policy and workers."""
        turns: list[Turn] = []
        for element in self.elements:
            role: str = "tool" if isinstance(element, Obs) else "assistant"
            if turns and turns[-1].role == role:
                turns[-1] = Turn(turns[-1].role, (*turns[-1].elements, element))
            else:
                turns.append(Turn("tool" if role == "tool" else "assistant", (element,)))
        return tuple(turns)


def _is_allowed(action: Action, due: Next, offers: Offers) -> bool:
    match action:
        case FinalAnswer(text):
            return due.may_answer and bool(text)
        case Plan(number, subtasks):
            return number == due.round and _is_plan_allowed(subtasks, due)
        case Route(number, subtask, worker, primitive, query):
            is_due = due.to_route is not None and due.to_route.id == subtask
            is_offered = primitive in offers.get(worker, ())
            return is_due and number == due.round and is_offered and bool(query)
        case Verify(number, target, _):
            is_target = set(target) <= set(due.to_verify) and _is_rising(target)
            return due.must_verify and number == due.round and is_target


def _is_plan_allowed(subtasks: tuple[Subtask, ...], due: Next) -> bool:
    ids = tuple(range(due.first_id, due.first_id + len(subtasks)))
    return (
        1 <= len(subtasks) <= due.most_subtasks
        and tuple(each.id for each in subtasks) == ids
        and all(
            _is_rising(each.depends_on)
            and set(each.depends_on) <= {*due.known, *range(due.first_id, each.id)}
            for each in subtasks
        )
    )


def _is_rising(ids: tuple[int, ...]) -> bool:
    return list(ids) == sorted(set(ids))
