"""Sums, products and chains of both."""

import random

from powerinfer.orchestra.evaluation.checking import Check
from powerinfer.orchestra.evaluation.wording import Facts, Form, TaskKind

__all__ = ["KIND"]


def _chain(choice: random.Random) -> Facts:
    a, b, c = (choice.randint(11, 99) for _ in range(3))
    return Facts({"expression": f"{a} * {b} - {c}"}, str(a * b - c))


def _sum(choice: random.Random) -> Facts:
    numbers = [choice.randint(100, 9999) for _ in range(choice.randint(3, 5))]
    return Facts({"expression": " + ".join(map(str, numbers))}, str(sum(numbers)))


def _story(choice: random.Random) -> Facts:
    boxes, each, lost = choice.randint(12, 60), choice.randint(12, 60), choice.randint(3, 99)
    thing = choice.choice(("screws", "apples", "books", "bulbs"))
    values = {"boxes": boxes, "each": each, "lost": lost, "thing": thing}
    return Facts(values, str(boxes * each - lost))


_EXPRESSION_WORDINGS = (
    "What is {expression}?",
    "Calculate {expression}.",
    "Work out {expression} and give the number.",
)
_EXPRESSION_HELD_OUT = (
    "Please evaluate {expression}.",
    "How much does {expression} come to?",
)

KIND = TaskKind(
    (
        Form(_chain, Check.NUMERIC, _EXPRESSION_WORDINGS, _EXPRESSION_HELD_OUT),
        Form(_sum, Check.NUMERIC, _EXPRESSION_WORDINGS, _EXPRESSION_HELD_OUT),
        Form(
            _story,
            Check.NUMERIC,
            (
                "A shop gets {boxes} boxes of {each} {thing} and loses {lost}. "
                "How many {thing} remain?",
                "There are {boxes} crates with {each} {thing} in each; {lost} are taken away. "
                "How many {thing} are left?",
            ),
            (
                "{lost} {thing} go missing from a delivery of {boxes} packs with {each} in a pack. "
                "What number of {thing} is still there?",
            ),
        ),
    )
)
