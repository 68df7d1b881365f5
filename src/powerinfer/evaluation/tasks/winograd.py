"""The Winograd Schema Challenge (WSC273): whom a pronoun means."""

from dataclasses import replace

from powerinfer.evaluation.items import Contexts
from powerinfer.evaluation.task import NamedTask, reworded

__all__ = ["TASK"]


def _reword(item: Contexts) -> Contexts:
    """lm-eval joins what follows the pronoun by one more space than the sentence has."""
    is_word = item.continuation[0].isalnum() or item.continuation[0] in "\"'("
    return replace(item, continuation=f" {item.continuation}" if is_word else item.continuation)


TASK = NamedTask(
    files=(
        "winograd.jsonl",
        "winograd_wsc273.jsonl",
        "language_understanding/winograd_wsc.jsonl",
    ),
    read=reworded(Contexts, _reword),
)
