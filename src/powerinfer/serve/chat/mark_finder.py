"""Marks in a text that comes in pieces."""

from collections.abc import Sequence

__all__ = ["MarkFinder"]


class MarkFinder:
    """Cuts a text at the first of some marks; holds back what may become one.

    Attributes:
        found: the mark that was found, None so far.
    """

    def __init__(self, *marks: str) -> None:
        self._marks: Sequence[str] = marks
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> tuple[str, str]:
        """Read on; returns the text before the mark, as far as it is certain, and that after it."""
        text = self._held + text
        places = [(at, -len(mark), mark) for mark in self._marks if (at := text.find(mark)) >= 0]
        if places:
            at, _, self.found = min(places)
            self._held = ""
            return text[:at], text[at + len(self.found) :]
        keep = len(text) - self._length_of_beginning(text)
        self._held = text[keep:]
        return text[:keep], ""

    def finish(self) -> str:
        """What was held back, at the end of the text."""
        held, self._held = self._held, ""
        return held

    def _length_of_beginning(self, text: str) -> int:
        """Length of the longest end of the text that a mark begins with."""
        longest = max(map(len, self._marks)) - 1
        for length in range(min(longest, len(text)), 0, -1):
            end = text[-length:]
            if any(mark.startswith(end) for mark in self._marks):
                return length
        return 0
