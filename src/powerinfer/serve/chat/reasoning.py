"""Separates a model's reasoning from its answer.

gpt-oss writes reasoning as separate parts, which `tool_formats/harmony.py` parses. Other models put
it between two marks; the template may already write the first one into the prompt.
"""

from collections.abc import Sequence

from powerinfer.serve.chat.deltas import ChatDelta, ChatOutputParser
from powerinfer.serve.chat.mark_finder import MarkFinder

__all__ = ["ReasoningMarks", "ReasoningOutput", "reasoning_marks"]

ReasoningMarks = tuple[str, str]
"""Opening and closing mark of reasoning."""

_MARKS: tuple[ReasoningMarks, ...] = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel>thought", "<channel|>"),
)


def reasoning_marks(template: str | None) -> ReasoningMarks | None:
    """Marks that a chat template knows; None if it knows none."""
    return next((marks for marks in _MARKS if marks[1] in (template or "")), None)


class ReasoningOutput:
    """Parses an answer that may begin with reasoning; the rest goes to another parser."""

    def __init__(
        self,
        said: ChatOutputParser,
        marks: ReasoningMarks,
        *,
        is_open: bool,
        also_ends: Sequence[str] = (),
    ) -> None:
        """Start before the answer.

        Args:
            said: parses the text after the reasoning.
            marks: opening and closing mark of reasoning.
            is_open: the prompt ends with the opening mark.
            also_ends: beginnings of what follows reasoning, if the closing mark is missing.
        """
        self._said = said
        self._opening, self._closing = marks
        self._finder = MarkFinder(self._closing, *also_ends)
        self._step = self._think if is_open else self._begin
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
            found = self._reasoning(self._finder.finish())
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
        reasoning, rest = self._finder.push(text)
        found = self._reasoning(reasoning)
        if mark := self._finder.found:
            self._held, self._step = "", self._after
            found += self.push(rest if mark == self._closing else mark + rest)
        return found

    def _reasoning(self, text: str) -> list[ChatDelta]:
        text = self._held + text
        if not self._has_begun:
            text = text.lstrip()
        reasoning = text.rstrip()
        self._held = text[len(reasoning) :]
        self._has_begun = self._has_begun or bool(reasoning)
        return [ChatDelta(reasoning=reasoning)] if reasoning else []

    def _after(self, text: str) -> list[ChatDelta]:
        """Skip white space between the reasoning and the text."""
        text = text.lstrip()
        if not text:
            return []
        self._step = self._said.push
        return self._said.push(text)
