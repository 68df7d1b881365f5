"""`[TOOL_CALLS]` of Mistral's models.

Up to version 7 of their tokenizer a list of objects follows. From version 11 on, each call has a
name and arguments: `[TOOL_CALLS]name[CALL_ID]id[ARGS]{...}`; the id is optional.
"""

import hashlib
from collections.abc import Sequence

from powerinfer.serve.chat.deltas import ChatDelta, ChatOutputParser
from powerinfer.serve.chat.mark_finder import MarkFinder
from powerinfer.serve.chat.messages import ChatMessage
from powerinfer.serve.tool_formats._format import (
    ForcedCall,
    StepParser,
    Tool,
    ToolFormat,
    random_id,
)
from powerinfer.serve.tool_formats._json import CallObject, JsonValue
from powerinfer.serve.tool_formats._schemas import call_schema, with_place

__all__ = ["FORMAT"]

# Letters and digits of a call id; templates accept no other.
_ID_LENGTH = 9
_CALLS, _ID, _ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"


class _Mistral(ToolFormat):
    def is_shown_by(self, template: str) -> bool:
        return _CALLS in template

    def new_parser(self, tools: Sequence[Tool]) -> ChatOutputParser:
        del tools  # The mark alone says that something is a call.
        return _Parser(self)

    def new_id(self) -> str:
        return random_id(_ID_LENGTH)

    def forced(self, tools: Sequence[Tool], template: str) -> ForcedCall:
        if len(tools) == 1 and _ARGUMENTS in template:
            return ForcedCall(f"{_CALLS}{tools[0].name}{_ARGUMENTS}", with_place(tools[0], "#"))
        schema = call_schema(tools, "arguments")
        definitions = schema.pop("$defs")
        items = {"type": "array", "items": schema, "minItems": 1, "maxItems": 1}
        return ForcedCall(_CALLS, {**items, "$defs": definitions})

    def messages(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> list[ChatMessage]:
        """Convert messages, with ids that the templates accept; equal ids stay equal."""
        return [_shortened(message) for message in super().messages(messages, tools)]


def _shortened(message: ChatMessage) -> ChatMessage:
    short = message.copy()
    if "tool_call_id" in short:
        short["tool_call_id"] = _short(short["tool_call_id"])
    if "tool_calls" in short:
        short["tool_calls"] = [{**call, "id": _short(call["id"])} for call in short["tool_calls"]]
    return short


def _short(call_id: str) -> str:
    if len(call_id) == _ID_LENGTH and call_id.isascii() and call_id.isalnum():
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:_ID_LENGTH]


class _Parser(StepParser):
    def __init__(self, call_format: ToolFormat) -> None:
        super().__init__(call_format)
        self._finder = MarkFinder(_CALLS)
        self._step = self._say
        self._call = CallObject(("arguments",))
        self._arguments = JsonValue()
        self._name = ""

    def finish(self) -> list[ChatDelta]:
        if self._step == self._say:
            self._pieces.say(self._finder.finish())
        elif self._step == self._read_name:
            self._pieces.say(_CALLS + self._name + self._finder.finish())
        elif self._step == self._read_object and not self._call.is_begun:
            self._pieces.say(_CALLS + self._call.raw)
        return self._pieces.finish()

    def _say(self, text: str) -> str:
        said, rest = self._finder.push(text)
        self._pieces.say(said)
        if self._finder.found:
            self._step = self._choose_form
        return rest

    def _choose_form(self, text: str) -> str:
        text = text.lstrip()
        if text:
            self._name, self._finder = "", MarkFinder(_ID, _ARGUMENTS, "{")
            self._step = self._read_list if text[0] in "[{" else self._read_name
        return text

    def _read_list(self, text: str) -> str:
        """Parse text between the objects of a list, or before a single object."""
        text = text.lstrip("[, \t\r\n")
        if text and text[0] == "{":
            self._call = CallObject(("arguments",))
            self._step = self._read_object
            return text
        if text:
            self._go_on()
        return text.removeprefix("]")

    def _read_object(self, text: str) -> str:
        used = self._call.push(text)
        self._pieces.add_object(self._call)
        if self._call.is_over and not self._call.is_begun:
            self._pieces.say(_CALLS + self._call.raw)
            self._go_on()
        elif self._call.is_over:
            self._step = self._read_list if self._call.is_done else self._drop
        return text[used:]

    def _read_name(self, text: str) -> str:
        name, rest = self._finder.push(text)
        self._name += name
        found = self._finder.found
        if found is None:
            return ""
        self._finder = MarkFinder(_ARGUMENTS, "{")
        self._pieces.begin_call(self._name.strip())
        self._arguments = JsonValue()
        self._step = self._skip_id if found == _ID else self._read_arguments
        return "{" + rest if found == "{" else rest

    def _skip_id(self, text: str) -> str:
        """Skip the id chosen by the model, as every call already has one."""
        _, rest = self._finder.push(text)
        if self._finder.found is None:
            return ""
        self._step = self._read_arguments
        return "{" + rest if self._finder.found == "{" else rest

    def _read_arguments(self, text: str) -> str:
        used = 0
        for char in text:
            if self._arguments.is_over or not self._arguments.take(char):
                break
            used += 1
        self._pieces.add_arguments(text[:used])
        if self._arguments.is_over:
            self._go_on()
        return text[used:]

    def _go_on(self) -> None:
        self._finder, self._step = MarkFinder(_CALLS), self._say


FORMAT = _Mistral()
