"""Calls that are JSON objects without any marks around them."""

from collections.abc import Collection

from powerinfer.serve.chat.deltas import ChatDelta
from powerinfer.serve.tool_formats._format import StepParser, ToolFormat
from powerinfer.serve.tool_formats._json import CallObject

__all__ = ["BareObjects"]

# Further keys of a call. An object with other keys is text.
_OTHER_KEYS = ("type", "id")
_BETWEEN = " \t\r\n;,"


class BareObjects(StepParser):
    """Parses an answer as calls if it begins with an object that names a tool, else as text."""

    def __init__(
        self, call_format: ToolFormat, tools: Collection[str], *, arguments_key: str, mark: str = ""
    ) -> None:
        """Start before the answer.

        Args:
            tools: names of the functions; an object with another name is text.
            mark: optional mark before a call.
        """
        super().__init__(call_format)
        self._tools = tools
        self._keys = frozenset((arguments_key, "arguments", "parameters"))
        self._mark = mark
        self._step = self._begin
        self._held = ""
        self._call = CallObject(self._keys, _OTHER_KEYS)

    def finish(self) -> list[ChatDelta]:
        """Return what was held back, at the end of the answer."""
        if self._step == self._begin:
            self._pieces.say(self._held)
        elif self._step == self._read_call and not self._call.is_begun:
            self._pieces.say(self._held + self._call.raw)
        return self._pieces.finish()

    def _begin(self, text: str) -> str:
        """Parse text before an object, or before it is clear that there is none."""
        text = self._held + text
        start = text.lstrip(_BETWEEN if self._pieces.num_calls else None)
        if self._mark and (not start or self._mark.startswith(start)):
            self._held = text
            return ""
        start = start.removeprefix(self._mark).lstrip()
        if not start:
            self._held = text
            return ""
        if start[0] != "{":
            self._held, self._step = "", self._say
            return start if self._pieces.num_calls else text
        self._held = text[: len(text) - len(start)]
        self._call = CallObject(self._keys, _OTHER_KEYS)
        self._step = self._read_call
        return start

    def _read_call(self, text: str) -> str:
        used = self._call.push(text)
        name = self._call.name
        if name is None or self._call.is_begun or name in self._tools:
            self._pieces.add_object(self._call)
        if not self._call.is_begun and (name is not None or self._call.is_over):
            return self._give_up(text[used:])
        if self._call.is_over:
            self._held = ""
            self._step = self._begin if self._call.is_done else self._drop
        return text[used:]

    def _give_up(self, rest: str) -> str:
        """Treat the object as text."""
        self._step = self._say
        return self._held + self._call.raw + rest

    def _say(self, text: str) -> str:
        self._pieces.say(text)
        return ""
