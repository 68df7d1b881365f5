"""PIQA: the better of two ways to an everyday goal."""

from dataclasses import replace

from powerinfer.evaluation.items import Choices
from powerinfer.evaluation.task import NamedTask, reworded

__all__ = ["TASK"]


def _reword(item: Choices) -> Choices:
    """Drop the line end of a question, and ask for the answer."""
    return replace(item, query=item.query.removesuffix("\n") + "\nAnswer:")


TASK = NamedTask(
    files=("piqa.jsonl", "piqa_valid.jsonl", "commonsense_reasoning/piqa.jsonl"),
    read=reworded(Choices, _reword),
    is_normalized=True,
)
