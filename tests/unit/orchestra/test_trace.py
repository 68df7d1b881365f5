"""Events as lines for people."""

from powerinfer.orchestra.actions import FinalAnswer, Plan, Route, Subtask, Verify
from powerinfer.orchestra.ledger import Step
from powerinfer.orchestra.primitives.primitive import Observation
from powerinfer.orchestra.runtime import Acted, Event, Observed
from powerinfer.orchestra.trace import event_lines

STEP = Step(worker="model", primitive="answer", tokens=3, seconds=0.5)


def test_events_as_a_tree() -> None:
    plan = Plan(1, (Subtask(1, (), "find\nit"), Subtask(2, (1,), "\x1b[2Jx")))
    route = Route(1, 2, "model", "answer", "q" * 300)
    events: list[Event] = [
        Acted(plan, STEP),
        Acted(route, STEP),
        Observed(route, Observation("text", untrusted=True), STEP),
        Observed(route, Observation("no", ok=False), STEP),
        Acted(Verify(1, (1, 2), "wrong"), STEP),
        Acted(Verify(2, (), "right"), STEP),
        Acted(FinalAnswer("42"), STEP),
    ]
    assert [line for event in events for line in event_lines(event)] == [
        "plan 1",
        "  1. find it",
        "  2. \x1b[2Jx (after 1)",
        f"  2 > model answer: {'q' * 200}...",
        "  = 2 (untrusted): text  [3 tokens, 0.50 s]",
        "  ! 2: no  [3 tokens, 0.50 s]",
        "verdict 1: repair of 1, 2: wrong",
        "verdict 2: pass: right",
    ]
