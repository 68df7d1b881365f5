"""What may come next, and the grammar of it."""

import pytest

from powerinfer.orchestra.actions import (
    FinalAnswer,
    Obs,
    Plan,
    ProtocolError,
    Route,
    Subtask,
    Verify,
)
from powerinfer.orchestra.grammar import action_grammar
from powerinfer.orchestra.state import Next, State

OFFERS = {"tiny": ("reason",)}


def planned(*depends: tuple[int, ...], number: int = 1, first: int = 1) -> Plan:
    return Plan(number, tuple(Subtask(first + at, each, "x") for at, each in enumerate(depends)))


def routed(state: State, subtask: int, number: int = 1) -> State:
    return state.after(Route(number, subtask, "tiny", "reason", "q"), OFFERS)


def test_one_round_to_the_answer() -> None:
    state = State()
    assert state.next(OFFERS) == Next(may_answer=True, most_subtasks=8)
    state = state.after(planned((), (1,)), OFFERS)
    assert state.next(OFFERS) == Next(to_route=Subtask(1, (), "x"))
    state = routed(routed(state, 1), 2)
    assert state.next(OFFERS) == Next()
    state = state.observed(Obs(2, "b"), is_tainted=True).observed(Obs(1, "a"), is_tainted=False)
    assert state.tainted == {2}
    assert state.next(OFFERS) == Next(must_verify=True, to_verify=(1, 2))
    state = state.after(Verify(1, (2,), "no"), OFFERS)
    due = Next(most_subtasks=6, first_id=3, known=(1, 2), round=2)
    assert state.next(OFFERS) == due
    assert [each.subtask for each in state.repairs] == [2]
    state = routed(state.after(planned((2,), number=2, first=3), OFFERS), 3, 2)
    state = state.observed(Obs(3, "c"), is_tainted=False).after(Verify(2, (), "ok"), OFFERS)
    assert state.repairs == ()
    assert state.next(OFFERS) == Next(may_answer=True)
    state = state.after(FinalAnswer("c"), OFFERS)
    assert state.next(OFFERS) == Next()
    assert [turn.role for turn in state.turns] == ["assistant", "tool"] * 2 + ["assistant"]


def test_the_last_round_passes() -> None:
    """No repair could follow: neither after the last round, nor without routes left."""
    full = State().after(planned(*[()] * 8), OFFERS)
    for subtask in range(1, 9):
        full = routed(full, subtask)
    for subtask in range(1, 9):
        full = full.observed(Obs(subtask, "r"), is_tainted=False)
    assert full.next(OFFERS) == Next(must_verify=True)
    assert "repair_needed" not in action_grammar(full.next(OFFERS), OFFERS)


def test_without_workers_there_is_only_an_answer() -> None:
    nobody: dict[str, tuple[str, ...]] = {"tiny": ()}
    assert State().next(nobody) == Next(may_answer=True)
    assert "plan" not in action_grammar(State().next(nobody), nobody)
    with pytest.raises(ValueError, match="nothing"):
        action_grammar(Next(), nobody)


@pytest.mark.parametrize(
    "action",
    [
        FinalAnswer(""),
        Verify(1, (), "x"),
        Route(1, 1, "tiny", "reason", "q"),
        planned(),
        planned(*[()] * 9),
        planned((1,)),
        planned((), (1, 1)),
        planned((), first=2),
        planned((), number=2),
    ],
)
def test_what_may_not_come_first(action: FinalAnswer | Verify | Route | Plan) -> None:
    with pytest.raises(ProtocolError, match="may not come now"):
        State().after(action, OFFERS)


def test_other_routes_are_refused() -> None:
    state = State().after(planned((), ()), OFFERS)
    for wrong in (
        Route(1, 2, "tiny", "reason", "q"),
        Route(2, 1, "tiny", "reason", "q"),
        Route(1, 1, "tiny", "code", "q"),
        Route(1, 1, "big", "reason", "q"),
        Route(1, 1, "tiny", "reason", ""),
    ):
        with pytest.raises(ProtocolError):
            state.after(wrong, OFFERS)
    with pytest.raises(ProtocolError, match="no observation"):
        state.observed(Obs(1, "x"), is_tainted=False)
