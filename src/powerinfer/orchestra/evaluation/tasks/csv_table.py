"""Questions about a table that is part of the question, as CSV."""

import random

from powerinfer.orchestra.evaluation.checking import Check
from powerinfer.orchestra.evaluation.tasks._goods import Good, draw_goods
from powerinfer.orchestra.evaluation.wording import Facts, Form, TaskKind

__all__ = ["KIND"]


def _csv(goods: list[Good]) -> str:
    rows = [f"{each.item},{each.city},{each.pieces},{each.price}" for each in goods]
    return "\n".join(["item,city,pieces,price", *rows])


def _cell(choice: random.Random) -> Facts:
    goods = draw_goods(choice)
    asked = choice.choice(goods)
    column = choice.choice(("pieces", "price"))
    values = {"table": _csv(goods), "item": asked.item, "column": column}
    return Facts(values, str(getattr(asked, column)))


def _total(choice: random.Random) -> Facts:
    goods = draw_goods(choice)
    column = choice.choice(("pieces", "price"))
    values = {"table": _csv(goods), "column": column}
    return Facts(values, str(sum(getattr(each, column) for each in goods)))


KIND = TaskKind(
    (
        Form(
            _cell,
            Check.NUMERIC,
            (
                "{table}\n\nIn this table, what is the {column} of the {item}?",
                "Here is a CSV table:\n{table}\nWhich number is in the column {column} for {item}?",
            ),
            ("Look at this list and tell me the {column} given for the {item}:\n{table}",),
        ),
        Form(
            _total,
            Check.NUMERIC,
            (
                "{table}\n\nWhat is the sum of the column {column} in this table?",
                "Here is a CSV table:\n{table}\nAdd up the column {column}.",
            ),
            ("What total does the {column} column of this list reach?\n{table}",),
        ),
    )
)
