"""Parts of long texts that share words with a question."""

import math
import re
from collections import Counter

__all__ = ["best_passages"]

_WORD = re.compile(r"\w+")
_PASSAGE = 800
"""Characters, about: passages end at the end of a line."""


def best_passages(text: str, question: str, most: int) -> str:
    """Return the passages that share the rarest words with a question, in the text's order.

    Args:
        text: any; returned as it is if it fits.
        question: in words.
        most: characters of the result, about.
    """
    if len(text) <= most:
        return text
    passages = _cut(text)
    words = [set(_words(passage)) for passage in passages]
    frequency = Counter(word for each in words for word in each)
    wanted = set(_words(question))

    def score(index: int) -> float:
        return sum(math.log(1 + len(passages) / frequency[word]) for word in wanted & words[index])

    kept: list[int] = []
    left = most
    for index in sorted(range(len(passages)), key=lambda index: (-score(index), index)):
        if len(passages[index]) <= left:
            kept.append(index)
            left -= len(passages[index])
        if left < _PASSAGE:
            break
    return _joined(passages, sorted(kept))


def _joined(passages: list[str], kept: list[int]) -> str:
    """The kept passages, with a mark wherever others are left out."""
    parts = []
    for before, index in zip([-1, *kept], [*kept, len(passages)], strict=True):
        if index > before + 1:
            parts.append("\n[...]\n")
        if index < len(passages):
            parts.append(passages[index])
    return "".join(parts).strip("\n")


def _cut(text: str) -> list[str]:
    passages = []
    start = 0
    while start < len(text):
        end = start + _PASSAGE
        at_line = text.rfind("\n", start + _PASSAGE // 2, end)
        end = at_line + 1 if at_line > 0 else end
        passages.append(text[start:end])
        start = end
    return passages


def _words(text: str) -> list[str]:
    return [word for word in _WORD.findall(text.lower()) if len(word) > 2 or word.isdecimal()]
