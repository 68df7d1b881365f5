"""For templates that show no tools: the prompt describes them, and a call is a JSON object."""

import json
from collections.abc import Sequence

from powerinfer.serve.chat.deltas import ChatOutputParser
from powerinfer.serve.chat.messages import ChatMessage, ToolCall
from powerinfer.serve.tool_formats._bare_objects import BareObjects
from powerinfer.serve.tool_formats._format import ForcedCall, Tool, ToolFormat
from powerinfer.serve.tool_formats._schemas import call_schema

__all__ = ["FORMAT"]

_EXPLANATION = """\
You can call functions. To call one, answer with a JSON object and nothing else:
{"name": "name of the function", "arguments": {"argument": "value"}}
These are the functions:
"""


class _Described(ToolFormat):
    # A template may show an unknown format, which this one would contradict.
    is_of_template = False

    def is_shown_by(self, template: str) -> bool:
        return False

    def new_parser(self, tools: Sequence[Tool]) -> ChatOutputParser:
        return BareObjects(self, [tool.name for tool in tools], arguments_key="arguments")

    def forced(self, tools: Sequence[Tool], template: str) -> ForcedCall:
        return ForcedCall("", call_schema(tools, "arguments"))

    def messages(self, messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> list[ChatMessage]:
        """Write calls and results as text, and the tools before the first message."""
        written = _joined([_as_text(message) for message in messages])
        if tools and written:
            first = written[0]
            text = f"{_explained(tools)}\n\n{first['content'] or ''}"
            written[0] = {**first, "content": text.rstrip()}
        return written


def _as_text(message: ChatMessage) -> ChatMessage:
    if message["role"] == "tool":
        return {"role": "user", "content": f"Result: {message['content']}"}
    plain = message.copy()
    said = [message["content"], *map(_written, plain.pop("tool_calls", ()))]
    plain["content"] = "\n".join(filter(None, said))
    return plain


def _joined(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Join consecutive messages of a user, as many templates require alternating roles."""
    joined: list[ChatMessage] = []
    for message in messages:
        if joined and message["role"] == joined[-1]["role"] == "user":
            joined[-1]["content"] = f"{joined[-1]['content']}\n\n{message['content']}"
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


def _written(call: ToolCall) -> str:
    name, arguments = call["function"]["name"], call["function"]["arguments"]
    shown = {} if isinstance(arguments, str) else arguments
    return json.dumps({"name": name, "arguments": shown}, ensure_ascii=False)


FORMAT = _Described()
