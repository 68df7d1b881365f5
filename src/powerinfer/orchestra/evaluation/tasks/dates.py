"""Calendar questions: days between dates, dates after a number of days, weekdays."""

import random
from datetime import date, timedelta

from powerinfer.orchestra.evaluation.checking import Check
from powerinfer.orchestra.evaluation.wording import Facts, Form, TaskKind

__all__ = ["KIND"]

_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def _drawn(choice: random.Random) -> date:
    return date(1990, 1, 1) + timedelta(days=choice.randrange(15_000))


def _between(choice: random.Random) -> Facts:
    first, days = _drawn(choice), choice.randint(20, 900)
    values = {"first": first.isoformat(), "second": (first + timedelta(days=days)).isoformat()}
    return Facts(values, str(days))


def _after(choice: random.Random) -> Facts:
    first, days = _drawn(choice), choice.randint(20, 900)
    values = {"first": first.isoformat(), "days": days}
    return Facts(values, (first + timedelta(days=days)).isoformat())


def _weekday(choice: random.Random) -> Facts:
    day = _drawn(choice)
    return Facts({"day": day.isoformat()}, _WEEKDAYS[day.weekday()])


KIND = TaskKind(
    (
        Form(
            _between,
            Check.NUMERIC,
            (
                "How many days are there from {first} to {second}?",
                "Count the days between {first} and {second}.",
            ),
            ("A loan ran from {first} until {second}. For what number of days?",),
        ),
        Form(
            _after,
            Check.NORMALIZED,
            (
                "Which date is {days} days after {first}? Answer as YYYY-MM-DD.",
                "Add {days} days to {first} and write the date as YYYY-MM-DD.",
            ),
            ("A parcel sent on {first} takes {days} days. When does it arrive (YYYY-MM-DD)?",),
        ),
        Form(
            _weekday,
            Check.NORMALIZED,
            ("What day of the week is {day}?", "On which weekday does {day} fall?"),
            ("Name the weekday of {day}.",),
        ),
    )
)
