"""RTE of GLUE: entailment between two sentences."""

from pathlib import Path

from powerinfer.evaluation.items import Choices
from powerinfer.evaluation.task import NamedTask
from powerinfer.evaluation.task_files import read_sentence_pairs

__all__ = ["TASK"]


def _read(path: Path) -> tuple[Choices, ...]:
    """Word the rows of GLUE's table."""
    return tuple(
        Choices(f"{first}\nQuestion: {second} True or False?\nAnswer:", ("True", "False"), label)
        for first, second, label in read_sentence_pairs(path)
    )


TASK = NamedTask(files=("rte_dev.tsv", "RTE/dev.tsv"), read=_read)
