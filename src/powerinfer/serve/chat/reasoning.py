"""What a model thinks before it answers, told apart from what it says.

gpt-oss writes its thoughts as parts of their own, which `tool_formats/harmony.py` reads. Other
models put them between two marks, of which the template may write the first into the prompt.
"""

from powerinfer.serve.chat.deltas import ChatDelta, ChatOutputParser
from powerinfer.serve.chat.mark_finder import MarkFinder

__all__ = ["ThoughtMarks", "Thoughts", "thought_marks"]

ThoughtMarks = tuple[str, str]
"""What stands before and behind thoughts."""

_MARKS: tuple[ThoughtMarks, ...] = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))


def thought_marks(template: str | None) -> ThoughtMarks | None:
    """The marks that a chat template knows; None if it knows none."""
    return next((marks for marks in _MARKS if marks[1] in (template or "")), None)


class Thoughts:
    """Reads an answer that may begin with thoughts; what follows them goes to another reader."""

    def __init__(self, said: ChatOutputParser, marks: ThoughtMarks, *, are_open: bool) -> None:
        """Start before the answer.

        Args:
            said: reads what is said.
            marks: around thoughts.
            are_open: the prompt ends with the first of the marks.
        """
        self._said = said
        self._opening, closing = marks
        self._finder = MarkFinder(closing)
        self._step = self._think if are_open else self._begin
        # White space around thoughts is no part of them.
        self._held = ""
        self._has_begun = False

    def push(self, text: str) -> list[ChatDelta]:
        """Read on; an end that may become a mark is held back."""
        return self._step(text) if text else []

    def finish(self) -> list[ChatDelta]:
        """What was held back, at the end of the answer."""
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
        """Between the thoughts and what is said."""
        text = text.lstrip()
        if not text:
            return []
        self._step = self._said.push
        return self._said.push(text)
