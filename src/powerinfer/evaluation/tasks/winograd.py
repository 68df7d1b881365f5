"""The Winograd Schema Challenge (WSC273): the referent of a pronoun."""

from dataclasses import replace

from powerinfer.evaluation.items import Contexts
from powerinfer.evaluation.task import NamedTask, reworded

__all__ = ["TASK"]


def _reword(item: Contexts) -> Contexts:
    """Add the second space with which lm-eval joins the rest of the sentence."""
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
