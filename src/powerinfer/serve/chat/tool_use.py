"""Tools of a chat, and the parser of an answer that may call them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from powerinfer.serve.chat.deltas import ChatDelta, ChatOutputParser, PlainOutput
from powerinfer.serve.chat.messages import FunctionTool
from powerinfer.serve.chat.reasoning import ReasoningMarks, ReasoningOutput
from powerinfer.serve.tool_formats import NO_PARAMETERS, Tool, ToolFormat

__all__ = ["AnswerForm", "Filtered", "Primed", "read_tool"]


def read_tool(tool: FunctionTool) -> Tool:
    """Convert a tool of OpenAI's API, whose form was checked."""
    function = tool["function"]
    return Tool(
        function["name"],
        function.get("parameters", NO_PARAMETERS),
        function.get("description", ""),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerForm:
    """The form of an answer.

    Attributes:
        is_harmony: reasoning and text are parts of the format, too.
        only_one: only the first call counts.
        is_forced: the model writes nothing but a call.
        marks: opening and closing mark of reasoning; None if the model has none.
        is_reasoning_open: the prompt ends with the opening mark.
        prefix: end of the prompt that belongs to the answer.
    """

    tool_format: ToolFormat
    is_harmony: bool = False
    tools: Sequence[Tool] = field(default=())
    only_one: bool = False
    is_forced: bool = False
    marks: ReasoningMarks | None = None
    is_reasoning_open: bool = False
    prefix: str = ""

    def new_parser(self) -> ChatOutputParser:
        """Make the parser of one answer."""
        reads_calls = self.is_harmony or self.tools
        said: ChatOutputParser = PlainOutput()
        if reads_calls:
            said = self.tool_format.new_parser([tool.name for tool in self.tools])
        if self.is_forced:
            said = Filtered(said, _is_no_text)
        if self.marks is not None and not self.is_harmony:
            said = ReasoningOutput(said, self.marks, is_open=self.is_reasoning_open)
        if self.only_one:
            said = Filtered(said, _is_no_further_call)
        return Primed(said, self.prefix) if self.prefix else said


class Primed:
    """Parses an answer whose beginning is in the prompt."""

    def __init__(self, reader: ChatOutputParser, prefix: str) -> None:
        self._reader = reader
        self._first = reader.push(prefix)

    def push(self, text: str) -> list[ChatDelta]:
        """Parse on."""
        return self._take() + self._reader.push(text)

    def finish(self) -> list[ChatDelta]:
        """Return what was held back, at the end of the answer."""
        return self._take() + self._reader.finish()

    def _take(self) -> list[ChatDelta]:
        first, self._first = self._first, []
        return first


class Filtered:
    """Drops some of the pieces that another parser finds."""

    def __init__(self, reader: ChatOutputParser, keeps: Callable[[ChatDelta], bool]) -> None:
        self._reader = reader
        self._keeps = keeps

    def push(self, text: str) -> list[ChatDelta]:
        """Parse on."""
        return list(filter(self._keeps, self._reader.push(text)))

    def finish(self) -> list[ChatDelta]:
        """Return what was held back, at the end of the answer."""
        return list(filter(self._keeps, self._reader.finish()))


def _is_no_text(delta: ChatDelta) -> bool:
    """Drop the beginning of a forced call that a limit cut off before its name."""
    return not delta.content


def _is_no_further_call(delta: ChatDelta) -> bool:
    return delta.tool_call is None or delta.tool_call.index == 0
