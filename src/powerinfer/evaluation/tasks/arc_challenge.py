"""ARC: school questions of natural science, the harder part."""

from powerinfer.evaluation.items import Choices
from powerinfer.evaluation.task import NamedTask, reworded
from powerinfer.evaluation.tasks.arc_easy import reword

__all__ = ["TASK"]

TASK = NamedTask(
    files=(
        "arc_challenge.jsonl",
        "arc_challenge_test.jsonl",
        "world_knowledge/arc_challenge.jsonl",
    ),
    read=reworded(Choices, reword),
    is_normalized=True,
)
