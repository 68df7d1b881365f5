"""Search for stop strings in streamed text, also across pieces.

Text that could still become a stop string is held back, so that no part of one is ever shown.
"""

from collections.abc import Sequence

__all__ = ["StopMatcher"]


class StopMatcher:
    """Cuts a stream of text at the first stop string, however the text is split.

    The stop string that ends first wins, and the longest of those that end at the same character.

    Attributes:
        found: the stop string that was found; None until then.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Make a matcher for stop strings that are not empty; with none, text passes through."""
        self._stops = tuple(stops)
        self._longest = max((len(stop) for stop in self._stops), default=0)
        self._held = ""
        self.found: str | None = None

    @property
    def is_stopped(self) -> bool:
        """True if a stop string was found."""
        return self.found is not None

    @property
    def state(self) -> tuple[str, str | None]:
        """Text held back and stop string found, for restoring them."""
        return self._held, self.found

    @state.setter
    def state(self, kept: tuple[str, str | None]) -> None:
        self._held, self.found = kept

    def push(self, text: str) -> str:
        """Take the next piece; return the text that is now certain, nothing after a stop string."""
        if self.is_stopped:
            return ""
        if not self._stops:
            return text
        buffer = self._held + text
        cut = self._find(buffer)
        if cut is not None:
            end, start = cut
            self.found, self._held = buffer[start:end], ""
            return buffer[:start]
        keep = len(buffer) - self._held_length(buffer)
        self._held = buffer[keep:]
        return buffer[:keep]

    def finish(self) -> str:
        """Return the text held back, at the end of the text."""
        held, self._held = self._held, ""
        return held

    def _find(self, buffer: str) -> tuple[int, int] | None:
        """Return end and beginning of the first stop string, or None."""
        found = [
            (start + len(stop), start) for stop in self._stops if (start := buffer.find(stop)) >= 0
        ]
        return min(found) if found else None

    def _held_length(self, buffer: str) -> int:
        """Return the length of the longest end of `buffer` that begins a stop string."""
        for length in range(min(self._longest - 1, len(buffer)), 0, -1):
            end = buffer[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
