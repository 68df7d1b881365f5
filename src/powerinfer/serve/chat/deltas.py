"""Pieces of an answer: text, reasoning and tool calls."""

from dataclasses import dataclass
from typing import Protocol

__all__ = ["ChatDelta", "ChatOutputParser", "PlainOutput", "ToolCallDelta"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDelta:
    """A piece of a tool call.

    Attributes:
        index: number of the call in the answer, from 0.
        id: of the call, in its first piece; None afterwards.
        name: of the tool, in the first piece; None afterwards.
        arguments: a piece of the arguments' JSON; may be empty.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatDelta:
    """An addition to an answer; exactly one of its fields is set."""

    content: str = ""
    reasoning: str = ""
    tool_call: ToolCallDelta | None = None


class ChatOutputParser(Protocol):
    """Parses one text piece by piece."""

    def push(self, text: str) -> list[ChatDelta]:
        """Parse the next piece of text; an end that may begin a mark is held back."""
        ...

    def finish(self) -> list[ChatDelta]:
        """Return what was held back, at the end of the text."""
        ...


class PlainOutput:
    """Parses text without reasoning or tool calls."""

    def push(self, text: str) -> list[ChatDelta]:
        """Return the text unchanged."""
        return [ChatDelta(content=text)] if text else []

    def finish(self) -> list[ChatDelta]:
        """Return nothing, as nothing was held back."""
        return []
