"""COPA: which of two sentences is the cause or the effect of another."""

import re

from powerinfer.evaluation.items import Choices
from powerinfer.evaluation.task import NamedTask, reworded

__all__ = ["TASK"]

_CONNECTOR = re.compile(r"[.,!?]?\s+(because|therefore)$")


def _reword(item: Choices) -> Choices:
    """Drop the premise's final mark, and begin choices with a small letter after two spaces."""
    query = _CONNECTOR.sub(r" \1", item.query.strip())
    choices = tuple(f" {choice[0].lower()}{choice[1:]}" for choice in item.choices)
    return Choices(query, choices, item.gold)


TASK = NamedTask(
    files=("copa.jsonl", "copa_valid.jsonl", "commonsense_reasoning/copa.jsonl"),
    read=reworded(Choices, _reword),
)
