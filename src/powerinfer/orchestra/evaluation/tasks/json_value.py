"""Values inside JSON that is part of the question."""

import json
import random

from powerinfer.orchestra.evaluation.checking import Check
from powerinfer.orchestra.evaluation.tasks._goods import draw_goods
from powerinfer.orchestra.evaluation.wording import Facts, Form, TaskKind

__all__ = ["KIND"]

_OWNERS = ("Ada Berg", "Luis Prado", "Mina Roy", "Tom Weiss", "Eva Lind")


def _value(choice: random.Random) -> Facts:
    goods = draw_goods(choice)
    asked = choice.choice(goods)
    record = {
        "stock": {
            each.item: {"pieces": each.pieces, "price": {"now": each.price, "old": each.price + 7}}
            for each in goods
        }
    }
    values = {"json": json.dumps(record), "item": asked.item}
    return Facts(values, str(asked.price))


def _owner(choice: random.Random) -> Facts:
    goods = draw_goods(choice)
    number = choice.randrange(len(goods))
    buyers = [choice.choice(_OWNERS) for _ in goods]
    orders = [
        {"id": 100 + at, "item": each.item, "buyer": {"name": buyers[at]}}
        for at, each in enumerate(goods)
    ]
    values = {"json": json.dumps({"orders": orders}), "id": 100 + number}
    return Facts(values, buyers[number])


KIND = TaskKind(
    (
        Form(
            _value,
            Check.NUMERIC,
            (
                "{json}\nWhat is stock.{item}.price.now in this JSON?",
                "Read this JSON and give the current price of the {item}: {json}",
            ),
            ("From the record {json} tell what a {item} costs now.",),
        ),
        Form(
            _owner,
            Check.NORMALIZED,
            (
                "{json}\nWho is the buyer of order {id} in this JSON?",
                "Read this JSON and give the buyer's name for id {id}: {json}",
            ),
            ("From the record {json} tell which person placed order number {id}.",),
        ),
    )
)
