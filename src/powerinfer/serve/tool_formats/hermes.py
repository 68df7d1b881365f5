"""`<tool_call>{"name": ..., "arguments": ...}</tool_call>`: Hermes, Qwen2.5, Qwen3, Granite 4."""

from collections.abc import Sequence

from powerinfer.serve.chat.deltas import ChatDelta, ChatOutputParser
from powerinfer.serve.chat.mark_finder import MarkFinder
from powerinfer.serve.tool_formats._format import ForcedCall, StepParser, Tool, ToolFormat
from powerinfer.serve.tool_formats._json import CallObject
from powerinfer.serve.tool_formats._schemas import call_schema

__all__ = ["FORMAT"]

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
# Marks of templates that put another format between these tags, or list calls.
_OTHERS = ("<function=", "<arg_key>", "<parameter=", "<invoke", "<tool_calls>")


class _Hermes(ToolFormat):
    def is_shown_by(self, template: str) -> bool:
        return _OPEN in template and not any(mark in template for mark in _OTHERS)

    def new_parser(self, tools: Sequence[Tool]) -> ChatOutputParser:
        del tools  # The marks alone say that something is a call.
        return _Parser(self)

    def forced(self, tools: Sequence[Tool], template: str) -> ForcedCall:
        return ForcedCall(f"{_OPEN}\n", call_schema(tools, "arguments"))


class _Parser(StepParser):
    def __init__(self, call_format: ToolFormat) -> None:
        super().__init__(call_format)
        self._step = self._say
        self._finder = MarkFinder(_OPEN)
        self._call = CallObject(("arguments", "parameters"))
        self._end = ""

    def finish(self) -> list[ChatDelta]:
        self._pieces.say(self._finder.finish())
        if self._step == self._read_call and self._call.name is None:
            self._pieces.say(_OPEN + self._call.raw)
        return self._pieces.finish()

    def _say(self, text: str) -> str:
        said, rest = self._finder.push(text)
        self._pieces.say(said)
        if self._finder.found:
            self._call = CallObject(("arguments", "parameters"))
            self._step = self._read_call
        return rest

    def _read_call(self, text: str) -> str:
        used = self._call.push(text)
        self._pieces.add_object(self._call)
        if self._call.is_over:
            if self._call.name is None:
                self._pieces.say(_OPEN + self._call.raw)
                self._go_on()
            else:
                self._end = ""
                self._finder = MarkFinder(_CLOSE)
                self._step = self._close if self._call.is_done else self._skip
        return text[used:]

    def _close(self, text: str) -> str:
        """Parse the mark after a call, which some models leave out, or text."""
        end = (self._end + text).lstrip()
        if end.startswith(_CLOSE):
            self._go_on()
            return end.removeprefix(_CLOSE)
        if _CLOSE.startswith(end):
            self._end = end
            return ""
        self._go_on()
        return end

    def _skip(self, text: str) -> str:
        """Drop all text after invalid arguments, up to the closing mark."""
        _, rest = self._finder.push(text)
        if self._finder.found:
            self._go_on()
        return rest

    def _go_on(self) -> None:
        self._finder, self._step = MarkFinder(_OPEN), self._say


FORMAT = _Hermes()
