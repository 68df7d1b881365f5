"""BoolQ: yes-or-no questions on a passage of an encyclopedia."""

from dataclasses import replace

from powerinfer.evaluation.items import Choices
from powerinfer.evaluation.task import NamedTask, reworded

__all__ = ["TASK"]


def _reword(item: Choices) -> Choices:
    """Drop the file's `Passage:`, and ask for the answer."""
    query = item.query.removeprefix("Passage: ").removesuffix("\nAnswer:")
    return replace(item, query=f"{query}\nAnswer:")


TASK = NamedTask(
    files=("boolq.jsonl", "boolq_valid.jsonl", "reading_comprehension/boolq.jsonl"),
    read=reworded(Choices, _reword),
)
