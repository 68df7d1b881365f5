"""Questions about an attached SQLite database."""

import random

from powerinfer.orchestra.evaluation.checking import Check
from powerinfer.orchestra.evaluation.task import Attachments
from powerinfer.orchestra.evaluation.tasks._goods import Good, draw_goods
from powerinfer.orchestra.evaluation.wording import Facts, Form, TaskKind

__all__ = ["KIND"]

_ABOUT = "The database store.db has a table goods(item, city, pieces, price)."


def _attached(goods: list[Good]) -> Attachments:
    rows = ",".join(f"('{each.item}','{each.city}',{each.pieces},{each.price})" for each in goods)
    table = "CREATE TABLE goods(item TEXT, city TEXT, pieces INTEGER, price INTEGER);"
    return Attachments(databases={"store.db": f"{table}INSERT INTO goods VALUES {rows};"})


def _pieces_in_city(choice: random.Random) -> Facts:
    goods = draw_goods(choice)
    city = choice.choice(goods).city
    pieces = sum(each.pieces for each in goods if each.city == city)
    return Facts({"about": _ABOUT, "city": city}, str(pieces), _attached(goods))


def _dearest(choice: random.Random) -> Facts:
    goods = draw_goods(choice)
    top = max(each.price for each in goods)
    dearest = next(each for each in goods if each.price == top)
    # Only one may have the highest price.
    others = [each for each in goods if each is dearest or each.price < top]
    return Facts({"about": _ABOUT}, dearest.item, _attached(others))


KIND = TaskKind(
    (
        Form(
            _pieces_in_city,
            Check.NUMERIC,
            (
                "{about} How many pieces are there in {city} in all?",
                "{about} Sum the pieces of all goods in {city}.",
            ),
            ("{about} Someone asks how large the stock in {city} is, in pieces.",),
        ),
        Form(
            _dearest,
            Check.NORMALIZED,
            (
                "{about} Which item has the highest price?",
                "{about} Find the item with the largest price.",
            ),
            ("{about} Name the most expensive item.",),
        ),
    )
)
