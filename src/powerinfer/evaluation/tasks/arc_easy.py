"""ARC: questions of natural science from schools, the easier part."""

from dataclasses import replace

from powerinfer.evaluation.items import Choices
from powerinfer.evaluation.task import NamedTask, reworded

__all__ = ["TASK", "reword"]


def reword(item: Choices) -> Choices:
    """The file has the question alone; lm-eval also asks for the answer."""
    return replace(item, query=f"{item.query}\nAnswer:")


TASK = NamedTask(
    files=("arc_easy.jsonl", "arc_easy_test.jsonl", "world_knowledge/arc_easy.jsonl"),
    read=reworded(Choices, reword),
    is_normalized=True,
)
