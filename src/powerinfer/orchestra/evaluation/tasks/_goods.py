"""Rows of goods, which several kinds of tasks ask about."""

import random
from dataclasses import dataclass

__all__ = ["Good", "draw_goods"]

_ITEMS = (
    *("lamp", "chair", "table", "shelf", "clock", "mirror", "carpet", "vase", "kettle", "pan"),
    *("spoon", "blanket", "pillow", "basket", "candle", "frame"),
)
_CITIES = ("Oslo", "Porto", "Ghent", "Turin", "Lyon")


@dataclass(frozen=True, slots=True)
class Good:
    """Some pieces of an item in the store of a city."""

    item: str
    city: str
    pieces: int
    price: int


def draw_goods(choice: random.Random) -> list[Good]:
    """Draw 8 to 12 rows whose items differ."""
    items = choice.sample(_ITEMS, choice.randint(8, 12))
    return [
        Good(item, choice.choice(_CITIES), choice.randint(2, 99), choice.randint(3, 400))
        for item in items
    ]
