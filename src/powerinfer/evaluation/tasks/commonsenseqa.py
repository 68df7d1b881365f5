"""CommonsenseQA: the letter of an answer; the file has four of the five answers."""

import re
from dataclasses import replace

from powerinfer.evaluation.items import Choices
from powerinfer.evaluation.task import NamedTask, reworded

__all__ = ["TASK"]

_HEADING = re.compile(r"\s*\nChoices:\n")


def _reword(item: Choices) -> Choices:
    """Drop the heading of the list of answers."""
    return replace(item, query=_HEADING.sub("\n", item.query))


TASK = NamedTask(
    files=(
        "commonsenseqa.jsonl",
        "commonsenseqa_valid.jsonl",
        "commonsense_reasoning/commonsense_qa.jsonl",
    ),
    read=reworded(Choices, _reword),
)
