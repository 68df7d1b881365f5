"""Social IQa: feelings and actions of people in a situation; two or three answers."""

import re

from powerinfer.evaluation.items import Choices
from powerinfer.evaluation.task import NamedTask, reworded

__all__ = ["TASK"]

_QUERY = re.compile(
    r"Context: (?P<context>.*)\nQuestion: (?P<question>.*)\nChoices:\n(?P<answers>.*)\nAnswer:",
    re.DOTALL,
)
_LETTER = re.compile(r"(?:^|\n)[A-Z]\. ")


def _reword(item: Choices) -> Choices:
    """Ask for the answer itself, where the file asks for a letter."""
    found = _QUERY.fullmatch(item.query)
    answers = () if found is None else tuple(_LETTER.split(found["answers"])[1:])
    if found is None or len(answers) != len(item.choices) or not all(answers):
        return item
    return Choices(f"Q: {found['context']} {found['question']}\nA:", answers, item.gold)


TASK = NamedTask(
    files=("siqa.jsonl", "siqa_valid.jsonl", "commonsense_reasoning/siqa.jsonl"),
    read=reworded(Choices, _reword),
)
