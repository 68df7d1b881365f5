"""Tools in a chat, and how an answer that may call them is read."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from powerinfer.serve.chat.deltas import ChatDelta, ChatOutputParser, PlainOutput
from powerinfer.serve.chat.messages import FunctionTool
from powerinfer.serve.chat.reasoning import ThoughtMarks, Thoughts
from powerinfer.serve.tool_formats import NO_PARAMETERS, Tool, ToolFormat

__all__ = ["AnswerForm", "CallsAlone", "OneCall", "Primed", "read_tool"]


def read_tool(tool: FunctionTool) -> Tool:
    """Read a tool of OpenAI's API, whose form was checked."""
    function = tool["function"]
    return Tool(
        function["name"],
        function.get("parameters", NO_PARAMETERS),
        function.get("description", ""),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForm:
    """What an answer looks like.

    Attributes:
        tool_format: in which calls are written.
        is_harmony: thoughts and text are parts of it, too.
        tools: that may be called.
        only_one: of the calls counts.
        is_forced: a call is all that the model may write.
        marks: around thoughts; None if the model knows none.
        are_thoughts_open: the prompt ends with the first of the marks.
        prefix: text that the prompt ends with and that belongs to the answer.
    """

    tool_format: ToolFormat
    is_harmony: bool = False
    tools: Sequence[Tool] = field(default=())
    only_one: bool = False
    is_forced: bool = False
    marks: ThoughtMarks | None = None
    are_thoughts_open: bool = False
    prefix: str = ""

    def new_parser(self) -> ChatOutputParser:
        """A reader of one answer."""
        reads_calls = self.is_harmony or self.tools
        said: ChatOutputParser = PlainOutput()
        if reads_calls:
            said = self.tool_format.new_parser([tool.name for tool in self.tools])
        if self.is_forced:
            said = CallsAlone(said)
        if self.marks is not None and not self.is_harmony:
            said = Thoughts(said, self.marks, are_open=self.are_thoughts_open)
        if self.only_one:
            said = OneCall(said)
        return Primed(said, self.prefix) if self.prefix else said


class Primed:
    """Reads an answer whose beginning stands in the prompt."""

    def __init__(self, reader: ChatOutputParser, prefix: str) -> None:
        self._reader = reader
        self._first = reader.push(prefix)

    def push(self, text: str) -> list[ChatDelta]:
        """Read on."""
        return self._take() + self._reader.push(text)

    def finish(self) -> list[ChatDelta]:
        """The answer ended; returns what was held back."""
        return self._take() + self._reader.finish()

    def _take(self) -> list[ChatDelta]:
        first, self._first = self._first, []
        return first


class OneCall:
    """Drops all calls but the first."""

    def __init__(self, reader: ChatOutputParser) -> None:
        self._reader = reader

    def push(self, text: str) -> list[ChatDelta]:
        """Read on."""
        return _without_further(self._reader.push(text))

    def finish(self) -> list[ChatDelta]:
        """The answer ended; returns what was held back."""
        return _without_further(self._reader.finish())


class CallsAlone:
    """Leaves text out: the beginning of a call that a limit cut off before its name."""

    def __init__(self, reader: ChatOutputParser) -> None:
        self._reader = reader

    def push(self, text: str) -> list[ChatDelta]:
        """Read on."""
        return [each for each in self._reader.push(text) if not each.content]

    def finish(self) -> list[ChatDelta]:
        """The answer ended; returns what was held back, but no text."""
        return [each for each in self._reader.finish() if not each.content]


def _without_further(deltas: Sequence[ChatDelta]) -> list[ChatDelta]:
    return [each for each in deltas if each.tool_call is None or each.tool_call.index == 0]
