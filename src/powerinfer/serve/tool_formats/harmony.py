"""Parts in the commentary channel `to=functions.NAME`: gpt-oss, whose reasoning is a part, too."""

from collections.abc import Sequence

from powerinfer.prompts.harmony import HarmonyPart, HarmonyReader
from powerinfer.serve.chat.deltas import ChatDelta, ChatOutputParser
from powerinfer.serve.chat.messages import ChatMessage
from powerinfer.serve.tool_formats._format import (
    ForcedCall,
    Pieces,
    Tool,
    ToolFormat,
    one_call_each,
)
from powerinfer.serve.tool_formats._json import CallObject
from powerinfer.serve.tool_formats._schemas import call_schema, with_place

__all__ = ["FORMAT"]

_FUNCTIONS = "functions."
_CALL = "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>"


class _Harmony(ToolFormat):
    def is_shown_by(self, template: str) -> bool:
        return "<|channel|>" in template and "<|message|>" in template

    def messages(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> list[ChatMessage]:
        """Convert messages, with one call in each: the template writes only one."""
        return one_call_each(super().messages(messages, tools))

    def new_parser(self, tools: Sequence[Tool]) -> ChatOutputParser:
        del tools  # Parts for functions are calls whatever they name.
        return _Parser(self)

    def forced(self, tools: Sequence[Tool], template: str) -> ForcedCall:
        if len(tools) == 1:
            return ForcedCall(_CALL.format(tools[0].name), with_place(tools[0], "#"))
        # The grammar must see the choice of the name: `_Parser` reads the whole call.
        return ForcedCall(_CALL.format(""), call_schema(tools, "arguments"))


class _Parser:
    def __init__(self, call_format: ToolFormat) -> None:
        self._reader = HarmonyReader()
        self._pieces = Pieces(call_format.new_id)
        # Kinds of parts so far: reasoning (True) and text (False).
        self._begun: set[bool] = set()
        # A call whose name is in its text, as `forced` requests.
        self._object: CallObject | None = None

    def push(self, text: str) -> list[ChatDelta]:
        for part in self._reader.push(text):
            self._read(part)
        return self._pieces.take()

    def finish(self) -> list[ChatDelta]:
        for part in self._reader.finish():
            self._read(part)
        return self._pieces.finish()

    def _read(self, part: HarmonyPart) -> None:
        if (part.recipient or "").startswith(_FUNCTIONS):
            self._read_call((part.recipient or "").removeprefix(_FUNCTIONS), part)
            return
        gap = "\n\n" if part.starts and part.is_reasoning in self._begun else ""
        self._begun.add(part.is_reasoning)
        if part.is_reasoning:
            self._pieces.think(gap + part.text)
        else:
            self._pieces.say(gap + part.text)

    def _read_call(self, name: str, part: HarmonyPart) -> None:
        if part.starts:
            self._object = None if name else CallObject(("arguments",))
            if name:
                self._pieces.begin_call(name)
        if self._object is None:
            self._pieces.add_arguments(part.text)
            return
        self._object.push(part.text)
        self._pieces.add_object(self._object)


FORMAT = _Harmony()
