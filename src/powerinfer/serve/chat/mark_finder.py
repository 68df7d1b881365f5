"""Search for marks in streamed text."""

from collections.abc import Sequence

__all__ = ["MarkFinder"]


class MarkFinder:
    """Splits streamed text at the first mark, kept in `found`; holds back what may begin one."""

    def __init__(self, *marks: str) -> None:
        self._marks: Sequence[str] = marks
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> tuple[str, str]:
        """Search on; returns the text that is certainly before the mark, and the text after it."""
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
        """Return what was held back, at the end of the text."""
        held, self._held = self._held, ""
        return held

    def _length_of_beginning(self, text: str) -> int:
        """Length of the longest suffix of the text that begins a mark."""
        longest = max(map(len, self._marks)) - 1
        for length in range(min(longest, len(text)), 0, -1):
            end = text[-length:]
            if any(mark.startswith(end) for mark in self._marks):
                return length
        return 0
