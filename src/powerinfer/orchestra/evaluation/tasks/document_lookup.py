"""Facts to look up in an attached document."""

import random

from powerinfer.orchestra.evaluation.checking import Check
from powerinfer.orchestra.evaluation.task import Attachments
from powerinfer.orchestra.evaluation.wording import Facts, Form, TaskKind

__all__ = ["KIND"]

_TOWNS = ("Alder", "Birch", "Cedar", "Dogwood", "Elm", "Fir", "Gorse", "Hazel", "Ivy", "Juniper")
_NAMES = ("Moreno", "Okafor", "Lindqvist", "Haddad", "Novak", "Tanaka", "Dubois", "Silva")
_ABOUT = "The file towns.txt describes some towns."


def _town(choice: random.Random, name: str, year: int, mayor: str) -> str:
    sentences = [
        f"{name} was founded in {year}.",
        f"Its mayor is {mayor}.",
        f"The market of {name} opens at {choice.randint(6, 11)} o'clock.",
    ]
    choice.shuffle(sentences)
    return " ".join(sentences)


def _drawn(choice: random.Random, asked: str) -> Facts:
    """Draw a document; `asked` is `year` or `mayor`."""
    names = choice.sample(_TOWNS, 6)
    years = choice.sample(range(1100, 1900), len(names))
    mayors = choice.sample(_NAMES, len(names))
    number = choice.randrange(len(names))
    text = "\n\n".join(map(_town, [choice] * len(names), names, years, mayors))
    gold = str(years[number]) if asked == "year" else mayors[number]
    values = {"about": _ABOUT, "town": names[number]}
    return Facts(values, gold, Attachments(documents={"towns.txt": text}))


KIND = TaskKind(
    (
        Form(
            lambda choice: _drawn(choice, "year"),
            Check.NUMERIC,
            ("{about} In which year was {town} founded?", "{about} When was {town} founded?"),
            ("{about} Look up how far back {town} goes: name the year.",),
        ),
        Form(
            lambda choice: _drawn(choice, "mayor"),
            Check.NORMALIZED,
            ("{about} Who is the mayor of {town}?", "{about} What is the mayor of {town} called?"),
            ("{about} Give the name of the person who governs {town}.",),
        ),
    )
)
