"""Two steps: a number to find, and arithmetic with it."""

import random

from powerinfer.orchestra.evaluation.checking import Check
from powerinfer.orchestra.evaluation.task import Part
from powerinfer.orchestra.evaluation.tasks import csv_table, database, document_lookup, json_value
from powerinfer.orchestra.evaluation.wording import Draft, Kind

__all__ = ["HELD_OUT", "KIND", "WORDINGS"]

_FIRST: dict[str, Kind] = {
    "csv_table": csv_table.KIND,
    "database": database.KIND,
    "document_lookup": document_lookup.KIND,
    "json_value": json_value.KIND,
}
WORDINGS = (
    "Then multiply the result by {factor} and subtract {less}.",
    "Multiply that number by {factor}, then subtract {less}. What do you get?",
)
"""Of the second step, which is a line of its own."""
HELD_OUT = ("Of what you find, take {factor} times as much and remove {less} from it.",)


class TwoSteps:
    """The first step is a task of another kind whose answer is a number."""

    def make(self, choice: random.Random, *, held_out: bool) -> Draft:
        """Draw both steps and their wordings."""
        kind = choice.choice(sorted(_FIRST))
        first = _FIRST[kind].make(choice, held_out=held_out)
        while first.check is not Check.NUMERIC:
            first = _FIRST[kind].make(choice, held_out=held_out)
        factor, less = choice.randint(12, 49), choice.randint(2, 99)
        gold = str(int(first.gold) * factor - less)
        wording = choice.choice(HELD_OUT if held_out else WORDINGS)
        second = wording.format(factor=factor, less=less)
        return Draft(
            question=f"{first.question}\n{second}",
            gold=gold,
            check=Check.NUMERIC,
            attachments=first.attachments,
            parts=(
                Part(first.question, first.gold, kind),
                Part(second, gold, "arithmetic"),
            ),
        )


KIND = TwoSteps()
