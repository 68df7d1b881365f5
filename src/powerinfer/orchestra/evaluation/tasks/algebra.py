"""Linear and quadratic equations, and derivatives at a point."""

import random

from powerinfer.orchestra.evaluation.checking import Check
from powerinfer.orchestra.evaluation.wording import Facts, Form, TaskKind

__all__ = ["KIND"]


def _linear(choice: random.Random) -> Facts:
    x, a, b = choice.randint(-30, 30), choice.randint(2, 19), choice.randint(1, 99)
    return Facts({"equation": f"{a}*x + {b} = {a * x + b}"}, str(x))


def _quadratic(choice: random.Random) -> Facts:
    small, large = sorted(choice.sample(range(1, 25), 2))
    equation = f"x**2 - {small + large}*x + {small * large} = 0"
    return Facts({"equation": equation}, str(large))


def _derivative(choice: random.Random) -> Facts:
    a, b, x = choice.randint(2, 9), choice.randint(2, 20), choice.randint(2, 12)
    values = {"function": f"{a}*x**3 - {b}*x", "point": x}
    return Facts(values, str(3 * a * x**2 - b))


KIND = TaskKind(
    (
        Form(
            _linear,
            Check.NUMERIC,
            ("Solve {equation} for x.", "Find x if {equation}.", "What is x in {equation}?"),
            ("Which value of x satisfies {equation}?", "Determine the unknown: {equation}."),
        ),
        Form(
            _quadratic,
            Check.NUMERIC,
            (
                "What is the larger root of {equation}?",
                "Solve {equation} and give the larger solution.",
            ),
            ("Two numbers solve {equation}; name the bigger one.",),
        ),
        Form(
            _derivative,
            Check.NUMERIC,
            (
                "What is the derivative of {function} at x = {point}?",
                "Differentiate {function} and evaluate the result at x = {point}.",
            ),
            ("How steep is the graph of {function} where x equals {point}?",),
        ),
    )
)
