"""`<|tool_call>call:NAME{KEY:VALUE,...}<tool_call|>`: Gemma 4.

Keys are bare, texts stand between marks `<|"|>`, which are tokens; other values are as in JSON.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import cast

from powerinfer.serve.chat.deltas import ChatDelta, ChatOutputParser
from powerinfer.serve.chat.mark_finder import MarkFinder
from powerinfer.serve.chat.messages import ChatMessage
from powerinfer.serve.tool_formats._format import ForcedCall, StepParser, Tool, ToolFormat
from powerinfer.serve.tool_formats._grammars import call_rules, check_tools
from powerinfer.serve.tool_formats._literals import json_text, typed_literal, typed_text
from powerinfer.serve.tool_formats._schemas import argument_types

__all__ = ["FORMAT"]

_OPEN, _CLOSE, _QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_BEGINNING = re.compile(r"\s*call:\s*([\w.:/-]+?)\s*(?=\{)")
# A text between marks or between quotation marks, a sign, or anything else up to the next sign.
_TOKEN = re.compile(
    rf"""\s*(?:{re.escape(_QUOTE)}(.*?){re.escape(_QUOTE)}|("(?:[^"\\]|\\.)*"(?=\s*[\]}},:]))"""
    r"|([][{},:])|([^][{},:]+))",
    re.DOTALL,
)
_MOST_LEVELS = 64


class _Gemma4(ToolFormat):
    def is_shown_by(self, template: str) -> bool:
        return _OPEN in template and _CLOSE in template

    def messages(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> list[ChatMessage]:
        """Convert messages, with the results of calls, and what was said then, in their message.

        All templates of these models write `tool_responses`; only some write messages of tools.
        """
        found: list[dict[str, object]] = []
        for message in super().messages(messages, tools):
            last = found[-1] if found else {}
            calls = cast("Sequence[Mapping[str, Mapping[str, object]]]", last.get("tool_calls", ()))
            results = cast("list[object]", last.get("tool_responses", []))
            if message["role"] == "tool" and calls:
                names = [each["function"]["name"] for each in calls]
                name = names[len(results)] if len(results) < len(names) else names[-1]
                response = _response(message["content"] or "")
                last["tool_responses"] = [*results, {"name": name, "response": response}]
            elif message["role"] == "assistant" and results and "tool_calls" not in message:
                last["content"] = message["content"]
            else:
                found.append(dict(message))
        return cast("list[ChatMessage]", found)

    def new_parser(self, tools: Sequence[Tool]) -> ChatOutputParser:
        return _Parser(self, tools)

    def forced(self, tools: Sequence[Tool], template: str) -> ForcedCall:
        check_tools(tools)
        rules = ["%llguidance {}", f"start: {' | '.join(f't{i}' for i in range(len(tools)))}"]
        for index, tool in enumerate(tools):
            rules += call_rules(tool, f"t{index}", opening="{", equals=":", comma=",", end="}")
        return ForcedCall(f"{_OPEN}call:", grammar="\n".join(rules))


def _response(content: str) -> object:
    """Read a result that is a JSON object, which templates write key by key; else a text."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return content
    return value if isinstance(value, dict) else content


class _Parser(StepParser):
    def __init__(self, call_format: ToolFormat, tools: Sequence[Tool]) -> None:
        super().__init__(call_format)
        self._tools = {tool.name: tool for tool in tools}
        self._call: list[str] = []
        self._go_on()

    def finish(self) -> list[ChatDelta]:
        rest = self._finder.finish()
        if self._step == self._say:
            self._pieces.say(rest)
        else:
            self._call.append(rest)
            self._end_call("")
        return self._pieces.finish()

    def _go_on(self) -> None:
        self._finder, self._step = MarkFinder(_OPEN), self._say

    def _say(self, text: str) -> str:
        said, rest = self._finder.push(text)
        self._pieces.say(said)
        if self._finder.found:
            self._call = []
            self._finder, self._step = MarkFinder(_QUOTE, _CLOSE), self._read
        return rest

    def _read(self, text: str) -> str:
        """Read outside of texts; the closing mark ends the call."""
        written, rest = self._finder.push(text)
        self._call.append(written)
        if self._finder.found == _QUOTE:
            self._call.append(_QUOTE)
            self._finder, self._step = MarkFinder(_QUOTE), self._read_text
        elif self._finder.found:
            self._end_call(_CLOSE)
            self._go_on()
        return rest

    def _read_text(self, text: str) -> str:
        written, rest = self._finder.push(text)
        self._call.append(written)
        if self._finder.found:
            self._call.append(_QUOTE)
            self._finder, self._step = MarkFinder(_QUOTE, _CLOSE), self._read
        return rest

    def _end_call(self, mark: str) -> None:
        """Pass the call on, with no arguments if they cannot be read; what is none is said."""
        written = "".join(self._call)
        beginning = _BEGINNING.match(written)
        if beginning is None:
            self._pieces.say(f"{_OPEN}{written}{mark}")
            return
        name = beginning[1]
        self._pieces.begin_call(name)
        values = _Values(written, beginning.end(), self._tools.get(name, Tool(name)))
        self._pieces.add_arguments(values.arguments() or "")


class _Values:
    """Converts written arguments to JSON."""

    def __init__(self, text: str, place: int, tool: Tool) -> None:
        self._tokens = _TOKEN.finditer(text, place)
        self._tool = tool

    def arguments(self) -> str | None:
        """Return the JSON of the first object; None if it is broken or has no end."""
        try:
            self._next()
            return self._object(0)
        except (StopIteration, ValueError):
            return None

    def _next(self) -> None:
        """Read on: a text in `_text`, as it is or in JSON; a sign in `_sign`; or a literal."""
        found = next(self._tokens)
        marked, text, self._sign, self._literal = found.groups(default="")
        self._is_text = found[1] is not None or found[2] is not None
        self._text = _unquoted(text) if found[2] is not None else marked

    def _object(self, level: int) -> str:
        """Read the members behind an opening brace, and the closing one."""
        members: list[str] = []
        self._next()
        while self._sign != "}":
            key = self._text if self._is_text else self._literal.strip()
            self._next()
            if not key or self._sign != ":":
                raise ValueError(key)
            self._next()
            members.append(f"{json_text(key)}: {self._value(level, key)}")
            self._end_of_item("}")
        return f"{{{', '.join(members)}}}"

    def _list(self, level: int, key: str) -> str:
        items: list[str] = []
        self._next()
        while self._sign != "]":
            items.append(self._value(level, key))
            self._end_of_item("]")
        return f"[{', '.join(items)}]"

    def _end_of_item(self, closing: str) -> None:
        """Read a comma, and what follows it, or the closing sign."""
        self._next()
        if self._sign == ",":
            self._next()
        elif self._sign != closing:
            raise ValueError(self._sign)

    def _value(self, level: int, key: str) -> str:
        if level > _MOST_LEVELS or (self._sign and self._sign not in "[{"):
            raise ValueError(key)
        if self._sign:
            return self._object(level + 1) if self._sign == "{" else self._list(level + 1, key)
        # Only arguments have types; what is inside of them is as it is written.
        types = argument_types(self._tool, key) if level == 0 else _ANY
        if self._is_text:
            return typed_text(self._text, types) if "string" not in types else json_text(self._text)
        return typed_literal(self._literal.strip(), types)


_ANY = frozenset(("string", "number", "integer", "boolean", "null"))


def _unquoted(text: str) -> str:
    try:
        return str(json.loads(text, strict=False))
    except ValueError:
        return text[1:-1]


FORMAT = _Gemma4()
