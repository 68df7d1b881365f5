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
    "{first}\nThen multiply the result by {factor} and subtract {less}.",
    "{first}\nMultiply that number by {factor}, then subtract {less}. What do you get?",
)
HELD_OUT = ("{first}\nOf what you find, take {factor} times as much and remove {less} from it.",)
_SECOND = "Multiply the result by {factor} and subtract {less}."


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
        return Draft(
            question=wording.format(first=first.question, factor=factor, less=less),
            gold=gold,
            check=Check.NUMERIC,
            attachments=first.attachments,
            parts=(
                Part(first.question, first.gold, kind),
                Part(_SECOND.format(factor=factor, less=less), gold, "arithmetic"),
            ),
        )


KIND = TwoSteps()
