"""What is read from the text of an answer in a chat: said, thought, or a call of a tool."""

from dataclasses import dataclass
from typing import Protocol

__all__ = ["ChatDelta", "ChatOutputParser", "PlainOutput", "ToolCallDelta"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCallDelta:
    """A piece of a call of a tool.

    Attributes:
        index: of the call in the answer, from 0.
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
    """What a piece of text adds to an answer: exactly one of its fields says something.

    Attributes:
        content: said to the user.
        reasoning: thought before.
        tool_call: a piece of a call.
    """

    content: str = ""
    reasoning: str = ""
    tool_call: ToolCallDelta | None = None


class ChatOutputParser(Protocol):
    """Reads one answer piece by piece; a new one for each text."""

    def push(self, text: str) -> list[ChatDelta]:
        """What the next piece of text adds; an end that may become a mark is held back."""
        ...

    def finish(self) -> list[ChatDelta]:
        """What was held back, at the end of the text."""
        ...


class PlainOutput:
    """All of the text is said."""

    def push(self, text: str) -> list[ChatDelta]:
        """The text as it is."""
        return [ChatDelta(content=text)] if text else []

    def finish(self) -> list[ChatDelta]:
        """Nothing was held back."""
        return []
