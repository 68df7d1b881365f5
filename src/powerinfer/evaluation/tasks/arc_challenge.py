"""ARC: questions of natural science from schools, the harder part."""

from powerinfer.evaluation.rewording import reworded_choices
from powerinfer.evaluation.task import NamedTask
from powerinfer.evaluation.tasks.arc_easy import reword

__all__ = ["TASK"]

TASK = NamedTask(
    files=(
        "arc_challenge.jsonl",
        "arc_challenge_test.jsonl",
        "world_knowledge/arc_challenge.jsonl",
    ),
    read=reworded_choices(reword),
    is_normalized=True,
)
