"""Separates a model's reasoning from its answer.

gpt-oss writes reasoning as separate parts, which `tool_formats/harmony.py` parses. Other models put
it between two marks; the template may already write the first one into the prompt.
"""

from powerinfer.serve.chat.deltas import ChatDelta, ChatOutputParser
from powerinfer.serve.chat.mark_finder import MarkFinder

__all__ = ["ThoughtMarks", "Thoughts", "thought_marks"]

ThoughtMarks = tuple[str, str]
"""Opening and closing mark of reasoning."""

_MARKS: tuple[ThoughtMarks, ...] = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))


def thought_marks(template: str | None) -> ThoughtMarks | None:
    """Marks that a chat template knows; None if it knows none."""
    return next((marks for marks in _MARKS if marks[1] in (template or "")), None)


class Thoughts:
    """Parses an answer that may begin with reasoning; the rest goes to another parser."""

    def __init__(self, said: ChatOutputParser, marks: ThoughtMarks, *, are_open: bool) -> None:
        """Start before the answer.

        Args:
            said: parses the text after the reasoning.
            marks: opening and closing mark of reasoning.
            are_open: the prompt ends with the opening mark.
        """
        self._said = said
        self._opening, closing = marks
        self._finder = MarkFinder(closing)
        self._step = self._think if are_open else self._begin
        # White space around reasoning does not belong to it.
        self._held = ""
        self._has_begun = False

    def push(self, text: str) -> list[ChatDelta]:
        """Parse on; an end that may begin a mark is held back."""
        return self._step(text) if text else []

    def finish(self) -> list[ChatDelta]:
        """Return what was held back, at the end of the answer."""
        if self._step == self._begin:
            found = self._said.push(self._held)
        elif self._step == self._think:
            found = self._thought(self._finder.finish())
        else:
            found = []
        self._held = ""
        return found + self._said.finish()

    def _begin(self, text: str) -> list[ChatDelta]:
        text = self._held + text
        start = text.lstrip()
        if start.startswith(self._opening):
            self._held, self._step = "", self._think
            return self.push(start.removeprefix(self._opening))
        if self._opening.startswith(start):
            self._held = text
            return []
        self._held, self._step = "", self._said.push
        return self._said.push(text)

    def _think(self, text: str) -> list[ChatDelta]:
        thought, rest = self._finder.push(text)
        found = self._thought(thought)
        if self._finder.found:
            self._held, self._step = "", self._after
            found += self.push(rest)
        return found

    def _thought(self, text: str) -> list[ChatDelta]:
        text = self._held + text
        if not self._has_begun:
            text = text.lstrip()
        thought = text.rstrip()
        self._held = text[len(thought) :]
        self._has_begun = self._has_begun or bool(thought)
        return [ChatDelta(reasoning=thought)] if thought else []

    def _after(self, text: str) -> list[ChatDelta]:
        """Skip white space between the reasoning and the text."""
        text = text.lstrip()
        if not text:
            return []
        self._step = self._said.push
        return self._said.push(text)
