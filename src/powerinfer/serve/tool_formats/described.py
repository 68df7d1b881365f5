"""For templates that show no tools: the prompt describes them, a call is a JSON object."""

import json
from collections.abc import Collection, Mapping, Sequence

from powerinfer.serve.chat.deltas import ChatOutputParser
from powerinfer.serve.tool_formats._bare_objects import BareObjects
from powerinfer.serve.tool_formats._format import (
    Call,
    ForcedCall,
    Tool,
    ToolFormat,
    arguments_object,
)
from powerinfer.serve.tool_formats._schemas import call_schema

__all__ = ["FORMAT"]

_EXPLANATION = """\
You can call functions. To call one, answer with a JSON object and nothing else:
{"name": "name of the function", "arguments": {"argument": "value"}}
These are the functions:
"""


class _Described(ToolFormat):
    # A template may have a form that nothing here reads: two of them would contradict each other.
    is_of_template = False

    def is_shown_by(self, template: str) -> bool:
        return False

    def new_parser(self, tools: Collection[str]) -> ChatOutputParser:
        return BareObjects(self, tools, arguments_key="arguments")

    def write(self, calls: Sequence[Call]) -> str:
        return "\n".join(
            json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
            for call in calls
        )

    def forced(self, tools: Sequence[Tool], template: str) -> ForcedCall:
        return ForcedCall("", call_schema(tools, "arguments"))

    def messages(
        self, messages: Sequence[Mapping[str, object]], tools: Sequence[Tool]
    ) -> list[dict[str, object]]:
        """Calls and results as text; the tools stand above the first message."""
        written = _joined([self._as_text(message) for message in messages])
        if tools and written:
            first = written[0]
            text = f"{_explained(tools)}\n\n{first.get('content') or ''}"
            written[0] = {**first, "content": text.rstrip()}
        return written

    def _as_text(self, message: Mapping[str, object]) -> dict[str, object]:
        plain = {key: value for key, value in message.items() if key != "tool_calls"}
        if message.get("role") == "tool":
            return {"role": "user", "content": f"Result: {message.get('content')}"}
        calls = message.get("tool_calls")
        if isinstance(calls, list) and calls:
            said = [str(message.get("content") or ""), self.write([_call(each) for each in calls])]
            plain["content"] = "\n".join(filter(None, said))
        return plain


def _joined(messages: Sequence[dict[str, object]]) -> list[dict[str, object]]:
    """Messages of a user behind each other as one: many templates want roles that alternate."""
    joined: list[dict[str, object]] = []
    for message in messages:
        if joined and message.get("role") == joined[-1].get("role") == "user":
            joined[-1]["content"] = f"{joined[-1].get('content')}\n\n{message.get('content')}"
        else:
            joined.append(message)
    return joined


def _explained(tools: Sequence[Tool]) -> str:
    lines = [
        json.dumps(
            {"name": each.name, "description": each.description, "parameters": each.parameters},
            ensure_ascii=False,
        )
        for each in tools
    ]
    return _EXPLANATION + "\n".join(lines)


def _call(call: Mapping[str, object]) -> Call:
    function = call.get("function")
    read = function if isinstance(function, Mapping) else {}
    arguments = arguments_object(read.get("arguments", {}))
    return Call(str(read.get("name", "")), arguments if isinstance(arguments, Mapping) else {})


FORMAT = _Described()
