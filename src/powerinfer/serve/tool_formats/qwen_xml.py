"""`<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`.

Qwen3.5, Qwen3-Coder and Nemotron 3. A value is plain text between line ends; the schema of the tool
tells texts from numbers, objects and others, which are written as JSON.
"""

from collections.abc import Mapping, Sequence

from powerinfer.serve.chat.deltas import ChatDelta, ChatOutputParser
from powerinfer.serve.chat.mark_finder import MarkFinder
from powerinfer.serve.chat.messages import ChatMessage, ToolCall
from powerinfer.serve.tool_formats._format import ForcedCall, StepParser, Tool, ToolFormat
from powerinfer.serve.tool_formats._grammars import (
    check_tools,
    forced_arguments,
    json_value,
    quoted,
)
from powerinfer.serve.tool_formats._literals import json_text, typed_text
from powerinfer.serve.tool_formats._schemas import argument_choices, argument_types

__all__ = ["FORMAT"]

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _END_FUNCTION = "<function=", "</function>"
_PARAMETER, _END_PARAMETER = "<parameter=", "</parameter>"
# What follows an end mark that is none of the value's own text.
_BEHIND = {_END_PARAMETER: (_PARAMETER, _END_FUNCTION, _CLOSE), _END_FUNCTION: (_CLOSE,)}
_LONGEST_NAME = 200
_END_VALUE = quoted(f"\n{_END_PARAMETER}\n")


class _QwenXML(ToolFormat):
    ends_reasoning = (f"{_OPEN}\n{_FUNCTION}",)

    def is_shown_by(self, template: str) -> bool:
        return all(mark in template for mark in (_OPEN, _FUNCTION, _PARAMETER))

    def messages(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> list[ChatMessage]:
        """Convert messages, with arguments that are objects: the template writes no others."""
        return [_with_objects(message) for message in super().messages(messages, tools)]

    def new_parser(self, tools: Sequence[Tool]) -> ChatOutputParser:
        return _Parser(self, tools)

    def forced(self, tools: Sequence[Tool], template: str) -> ForcedCall:
        check_tools(tools)
        rules = [f"text[suffix={_END_VALUE}]: /(?s:.*)/"]
        for index, tool in enumerate(tools):
            parts = [quoted(f"{tool.name}>\n")]
            for number, (name, is_required) in enumerate(forced_arguments(tool)):
                rule, mark = f"t{index}a{number}", quoted(f"{_PARAMETER}{name}>\n")
                rules.append(f"{rule}: {mark} {_value(tool, name)}")
                parts.append(rule if is_required else f"{rule}?")
            rules.append(f"t{index}: {' '.join(parts)} {quoted(_END_FUNCTION)}")
        start = " | ".join(f"t{index}" for index in range(len(tools)))
        grammar = "\n".join(("%llguidance {}", f"start: {start}", *rules))
        return ForcedCall(f"{_OPEN}\n{_FUNCTION}", grammar=grammar)


def _with_objects(message: ChatMessage) -> ChatMessage:
    if "tool_calls" not in message:
        return message
    return {**message, "tool_calls": [_with_object(call) for call in message["tool_calls"]]}


def _with_object(call: ToolCall) -> ToolCall:
    function = call["function"]
    given = function["arguments"]
    arguments = given if isinstance(given, Mapping) else {}
    return {**call, "function": {"name": function["name"], "arguments": arguments}}


def _value(tool: Tool, name: str) -> str:
    """Write the rule of a value; of a text only its choices are enforced."""
    if "string" not in argument_types(tool, name):
        return f"{json_value(tool, name)} {_END_VALUE}"
    choices = argument_choices(tool, name)
    return f"({' | '.join(map(quoted, choices))}) {_END_VALUE}" if choices else "text"


class _Parser(StepParser):
    def __init__(self, call_format: ToolFormat, tools: Sequence[Tool]) -> None:
        super().__init__(call_format)
        self._tools = {tool.name: tool for tool in tools}
        self._tool = Tool("")
        self._mark = self._held = self._name = self._newline = ""
        self._types: frozenset[str] = frozenset()
        self._value: list[str] = []
        self._is_first = self._begins_value = True
        self._go_on()

    def finish(self) -> list[ChatDelta]:
        if self._step == self._say:
            self._pieces.say(self._finder.finish())
        elif self._step == self._open:
            self._pieces.say(self._held)
        elif self._step == self._read_value:
            self._add_value(self._finder.finish())
        elif self._step == self._decide:
            self._end_value()
            self._end_call()
        elif self._step == self._skip:
            self._end_call()
        return self._pieces.finish()

    def _go_on(self, *ends: str) -> None:
        self._finder, self._step = MarkFinder(_OPEN, _FUNCTION, *ends), self._say

    def _say(self, text: str) -> str:
        said, rest = self._finder.push(text)
        self._pieces.say(said)
        found = self._finder.found
        if found in (_OPEN, _FUNCTION):
            self._mark = self._held = found
            self._step = self._open
        elif found is not None:
            self._go_on(_CLOSE)
        return rest

    def _open(self, text: str) -> str:
        """Parse the name, or text if the mark begins no call; some models leave out the first."""
        self._held += text
        start = self._held.removeprefix(_OPEN).lstrip()
        if _FUNCTION.startswith(start):
            return ""
        name, end, rest = start.removeprefix(_FUNCTION).partition(">")
        is_name = start.startswith(_FUNCTION) and "\n" not in name and len(name) < _LONGEST_NAME
        if is_name and not end:
            return ""
        name = name.strip()
        if is_name and name and (self._mark == _OPEN or name in self._tools):
            self._begin_call(name)
            return rest
        self._pieces.say(self._mark)
        self._go_on()
        return self._held.removeprefix(self._mark)

    def _begin_call(self, name: str) -> None:
        self._tool = self._tools.get(name, Tool(name))
        self._pieces.begin_call(name)
        self._is_first = True
        self._skip_to_next()

    def _skip_to_next(self) -> None:
        self._finder, self._step = MarkFinder(_PARAMETER, _END_FUNCTION, _CLOSE), self._skip

    def _skip(self, text: str) -> str:
        """Drop what stands before the next argument, or before the end of the call."""
        _, rest = self._finder.push(text)
        found = self._finder.found
        if found == _PARAMETER:
            self._name, self._finder, self._step = "", MarkFinder(">"), self._read_name
        elif found is not None:
            self._end_call()
            return found + rest
        return rest

    def _end_call(self) -> None:
        self._pieces.add_arguments("{}" if self._is_first else "}")
        self._go_on(_END_FUNCTION, _CLOSE)

    def _read_name(self, text: str) -> str:
        name, rest = self._finder.push(text)
        self._name += name
        if self._finder.found is not None:
            self._types = argument_types(self._tool, self._name)
            quote = '"' if self._is_streamed else ""
            self._pieces.add_argument(self._name, quote, is_first=self._is_first)
            self._is_first, self._begins_value = False, True
            self._value, self._newline = [], ""
            self._go_on_with_value()
        return rest

    @property
    def _is_streamed(self) -> bool:
        """The value is a text, which is passed on as it arrives."""
        return self._types == {"string"}

    def _go_on_with_value(self) -> None:
        self._finder, self._step = MarkFinder(*_BEHIND), self._read_value

    def _read_value(self, text: str) -> str:
        if self._begins_value:
            text = text.removeprefix("\n")
            self._begins_value = False
        said, rest = self._finder.push(text)
        self._add_value(said)
        if self._finder.found is not None:
            self._held, self._step = "", self._decide
        return rest

    def _decide(self, text: str) -> str:
        """Tell the end of the value from text that looks like it, by what follows."""
        mark = self._finder.found or ""
        self._held += text
        start = self._held.lstrip()
        if start.startswith(_BEHIND[mark]):
            self._end_value()
            self._skip_to_next()
            return start
        if any(behind.startswith(start) for behind in _BEHIND[mark]):
            return ""
        self._add_value(mark)
        self._go_on_with_value()
        return self._held

    def _add_value(self, text: str) -> None:
        """Add text, without a line end that may be the last."""
        text = self._newline + text
        self._newline = "\n" if text.endswith("\n") else ""
        text = text.removesuffix("\n")
        if self._is_streamed:
            self._pieces.add_arguments(json_text(text)[1:-1])
        else:
            self._value.append(text)

    def _end_value(self) -> None:
        value = '"' if self._is_streamed else typed_text("".join(self._value), self._types)
        self._pieces.add_arguments(value)


FORMAT = _QwenXML()
