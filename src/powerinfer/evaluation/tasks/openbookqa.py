"""OpenBookQA: elementary questions of natural science, of which the file has the words already."""

from powerinfer.evaluation.rewording import reworded_choices
from powerinfer.evaluation.task import NamedTask

__all__ = ["TASK"]

TASK = NamedTask(
    files=(
        "openbookqa.jsonl",
        "openbookqa_test.jsonl",
        "commonsense_reasoning/openbook_qa.jsonl",
    ),
    read=reworded_choices(lambda item: item),
    is_normalized=True,
)
