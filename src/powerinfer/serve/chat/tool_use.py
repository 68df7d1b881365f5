"""Tools in a chat: what of them the prompt shows, what must be called, how an answer is read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from powerinfer.serve.chat.deltas import ChatDelta, ChatOutputParser, PlainOutput
from powerinfer.serve.chat.reasoning import ThoughtMarks, Thoughts
from powerinfer.serve.tool_formats import NO_PARAMETERS, ForcedCall, Tool, ToolFormat

__all__ = ["AnswerForm", "CallsAlone", "OneCall", "Primed", "forced_call", "read_tool"]


def read_tool(tool: Mapping[str, object]) -> Tool:
    """A tool of OpenAI's API, checked before."""
    function = tool["function"]
    values = function if isinstance(function, Mapping) else {}
    parameters = values.get("parameters")
    return Tool(
        str(values.get("name", "")),
        parameters if isinstance(parameters, Mapping) else NO_PARAMETERS,
        str(values.get("description") or ""),
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


def forced_call(
    tool_format: ToolFormat,
    tools: Sequence[Tool],
    choice: str | Mapping[str, object],
    template: str,
) -> ForcedCall | None:
    """What makes the model call a tool; None if it need not.

    Args:
        tool_format: in which calls are written.
        tools: that may be called.
        choice: `required`, the name of one in OpenAI's form, or something that forces none.
        template: of the model's chats.
    """
    if isinstance(choice, Mapping):
        function = choice.get("function")
        name = function.get("name") if isinstance(function, Mapping) else None
        return tool_format.forced([tool for tool in tools if tool.name == name], template)
    return tool_format.forced(tools, template) if choice == "required" else None
