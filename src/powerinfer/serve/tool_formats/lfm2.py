"""`<|tool_call_start|>[NAME(KEY=VALUE, ...), ...]<|tool_call_end|>`: LFM2, LFM2.5.

Calls are written as in Python, with values of Python or JSON; told to, the models write a list of
JSON objects.
"""

import json
import re
from collections.abc import Mapping, Sequence

from powerinfer.serve.chat.deltas import ChatDelta, ChatOutputParser
from powerinfer.serve.chat.mark_finder import MarkFinder
from powerinfer.serve.chat.messages import ChatMessage, ToolCall
from powerinfer.serve.tool_formats._format import ForcedCall, Pieces, StepParser, Tool, ToolFormat
from powerinfer.serve.tool_formats._grammars import call_rules, check_tools, forced_arguments
from powerinfer.serve.tool_formats._json import CallObject
from powerinfer.serve.tool_formats._literals import LiteralEnd, typed_literal
from powerinfer.serve.tool_formats._schemas import argument_types

__all__ = ["FORMAT"]

_OPEN, _CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"
# Of the tools in the prompt; not all templates write the marks of calls.
_LIST = "List of tools: "
_BETWEEN = " \t\r\n,[]"
_NAME = re.compile(r"[\w.:/-]+")
_NOT_IN_KEYS = frozenset("\"'(){}[],")


class _LFM2(ToolFormat):
    def is_shown_by(self, template: str) -> bool:
        return _OPEN in template or _LIST in template

    def messages(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> list[ChatMessage]:
        """Convert messages, with calls as text: templates write none, or without escapes."""
        return [_written(message) for message in super().messages(messages, tools)]

    def new_parser(self, tools: Sequence[Tool]) -> ChatOutputParser:
        return _Parser(self, tools)

    def forced(self, tools: Sequence[Tool], template: str) -> ForcedCall:
        check_tools(tools)
        calls = " | ".join(f"t{index}" for index in range(len(tools)))
        rules = ["%llguidance {}", f'start: ({calls}) "]"']
        for index, tool in enumerate(tools):
            rules += call_rules(tool, f"t{index}", opening="(", equals="=", comma=", ", end=")")
        return ForcedCall(f"{_OPEN}[", grammar="\n".join(rules))


def _written(message: ChatMessage) -> ChatMessage:
    plain = message.copy()
    if calls := plain.pop("tool_calls", []):
        plain["content"] = f"{message['content']}{_OPEN}[{', '.join(map(_call, calls))}]{_CLOSE}"
    return plain


def _call(call: ToolCall) -> str:
    """Write a call as the template of LFM2.5 does, with escapes in texts."""
    given = call["function"]["arguments"]
    arguments = given.items() if isinstance(given, Mapping) else ()
    values = (
        f"{key}={json.dumps(value, ensure_ascii=False) if isinstance(value, dict) else repr(value)}"
        for key, value in arguments
    )
    return f"{call['function']['name']}({', '.join(values)})"


class _Parser(StepParser):
    def __init__(self, call_format: ToolFormat, tools: Sequence[Tool]) -> None:
        super().__init__(call_format)
        self._tools = {tool.name: tool for tool in tools}
        self._calls = _Calls(self._pieces, self._tools)
        self._go_on()

    def finish(self) -> list[ChatDelta]:
        rest = self._finder.finish()
        if self._step == self._say:
            self._pieces.say(rest)
        else:
            self._calls.push(rest)
            self._calls.finish()
        return self._pieces.finish()

    def _go_on(self) -> None:
        self._finder, self._step = MarkFinder(_OPEN), self._say

    def _say(self, text: str) -> str:
        said, rest = self._finder.push(text)
        self._pieces.say(said)
        if self._finder.found:
            self._calls = _Calls(self._pieces, self._tools)
            self._finder, self._step = MarkFinder(_CLOSE), self._read_calls
        return rest

    def _read_calls(self, text: str) -> str:
        written, rest = self._finder.push(text)
        self._calls.push(written)
        if self._finder.found:
            self._calls.finish(_CLOSE)
            self._go_on()
        return rest


class _Calls:
    """Reads what stands between the marks."""

    def __init__(self, pieces: Pieces, tools: Mapping[str, Tool]) -> None:
        self._pieces = pieces
        self._tools = tools
        self._raw: list[str] = []
        self._num_before = pieces.num_calls
        self._step = self._between
        self._text: list[str] = []
        self._end = LiteralEnd()
        self._object = CallObject(("arguments", "parameters"))
        self._tool = Tool("")
        self._num_arguments = 0

    def push(self, text: str) -> None:
        """Read on; without a call so far, the text is kept."""
        for char in text:
            if self._pieces.num_calls == self._num_before:
                self._raw.append(char)
            self._step(char)

    def finish(self, mark: str = "") -> None:
        """End, by a mark that ends an open call as well, or because the answer has ended."""
        if self._pieces.num_calls == self._num_before:
            self._pieces.say(f"{_OPEN}{''.join(self._raw)}{mark}")
        elif self._step == self._read_argument and mark:
            self._end_call()

    def _between(self, char: str) -> None:
        """Read what separates calls, or the first character of one."""
        if char == "{":
            self._object = CallObject(("arguments", "parameters"))
            self._step = self._read_object
            self._read_object(char)
        elif char not in _BETWEEN:
            self._text, self._step = [char], self._read_name

    def _read_object(self, char: str) -> None:
        self._object.push(char)
        self._pieces.add_object(self._object)
        if self._object.is_over:
            self._step = self._between if self._object.is_done else self._drop

    def _read_name(self, char: str) -> None:
        if char != "(":
            self._text.append(char)
            return
        name = "".join(self._text).strip()
        if _NAME.fullmatch(name) is None:
            self._step = self._drop
            return
        self._tool = self._tools.get(name, Tool(name))
        self._pieces.begin_call(name)
        self._num_arguments = 0
        self._begin_argument()

    def _drop(self, char: str) -> None:
        """Drop what is no call."""

    def _begin_argument(self) -> None:
        self._text, self._end, self._step = [], LiteralEnd(), self._read_argument

    def _read_argument(self, char: str) -> None:
        if self._end.take(char):
            self._text.append(char)
        elif char == ",":
            self._add_argument()
            self._begin_argument()
        else:
            self._end_call()

    def _end_call(self) -> None:
        self._add_argument()
        self._pieces.add_arguments("}" if self._num_arguments else "{}")
        self._step = self._between

    def _add_argument(self) -> None:
        """Add what was read; without a name it is the next argument of the schema."""
        text = "".join(self._text)
        name, equals, value = text.partition("=")
        if not equals or not _NOT_IN_KEYS.isdisjoint(name):
            names = [each for each, _ in forced_arguments(self._tool)]
            name, value = "".join(names[self._num_arguments :][:1]), text
        name, value = name.strip(), value.strip()
        if name and value:
            literal = typed_literal(value, argument_types(self._tool, name))
            self._pieces.add_argument(name, literal, is_first=not self._num_arguments)
            self._num_arguments += 1


FORMAT = _LFM2()
