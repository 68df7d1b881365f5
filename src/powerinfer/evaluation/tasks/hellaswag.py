"""HellaSwag: the likeliest continuation of a situation."""

import re

from powerinfer.evaluation.items import Choices
from powerinfer.evaluation.task import NamedTask, reworded

__all__ = ["TASK"]

_BRACKETS = re.compile(r"\[.*?\]")
_LAST_SENTENCE = re.compile(r"(?<=[.!?] )[a-z][^.!?]*$")


def _reword(item: Choices) -> Choices:
    """Drop marks of the WikiHow part, and begin the sentence to complete with a capital.

    lm-eval also names the activity first, which is in the file or is lost.
    """
    query = _LAST_SENTENCE.sub(lambda found: found[0].capitalize(), item.query)
    choices = tuple(_cleaned(choice) or choice for choice in item.choices)
    return Choices(_cleaned(query).lstrip(), choices, item.gold)


def _cleaned(text: str) -> str:
    text = text.strip().replace(" [title]", ". ")
    return _BRACKETS.sub("", text).replace("  ", " ")


TASK = NamedTask(
    files=("hellaswag.jsonl", "hellaswag_2k.jsonl", "language_understanding/hellaswag.jsonl"),
    read=reworded(Choices, _reword),
    is_normalized=True,
)
