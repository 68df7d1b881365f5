"""OpenBookQA: elementary questions of natural science, worded in the file as in lm-eval."""

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
