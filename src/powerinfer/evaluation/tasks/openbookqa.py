"""OpenBookQA: elementary questions of natural science, of which the file has the words already."""

from powerinfer.evaluation.items import Choices
from powerinfer.evaluation.task import NamedTask, reworded

__all__ = ["TASK"]

TASK = NamedTask(
    files=(
        "openbookqa.jsonl",
        "openbookqa_test.jsonl",
        "commonsense_reasoning/openbook_qa.jsonl",
    ),
    read=reworded(Choices, lambda item: item),
    is_normalized=True,
)
