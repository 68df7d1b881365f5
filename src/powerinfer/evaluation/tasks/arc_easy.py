"""ARC: school questions of natural science, the easier part."""

from dataclasses import replace

from powerinfer.evaluation.items import Choices
from powerinfer.evaluation.task import NamedTask, reworded

__all__ = ["TASK", "reword"]


def reword(item: Choices) -> Choices:
    """Ask for the answer, which the file's question alone does not."""
    return replace(item, query=f"{item.query}\nAnswer:")


TASK = NamedTask(
    files=("arc_easy.jsonl", "arc_easy_test.jsonl", "world_knowledge/arc_easy.jsonl"),
    read=reworded(Choices, reword),
    is_normalized=True,
)
