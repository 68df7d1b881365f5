"""Messages in OpenAI's form, read for templates: contents are texts, arguments are objects."""

import json
from collections.abc import Sequence
from typing import Literal, get_args

from powerinfer.serve.chat.messages import ChatMessage, FunctionCall, ToolCall
from powerinfer.serve.errors import bad_request
from powerinfer.serve.fields import Fields
from powerinfer.values import JSON, JSONObject

__all__ = ["read_arguments", "read_messages"]

_Text = Literal["name", "tool_call_id", "reasoning_content"]
_TEXTS: Sequence[_Text] = get_args(_Text)
_ROLES = ("system", "developer", "user", "assistant", "tool")


def read_messages(fields: Fields) -> list[ChatMessage]:
    """Read the messages of a request, at least one."""
    fields.required("messages")
    messages = [_message(each) for each in fields.objects("messages")]
    if not messages:
        raise bad_request("messages is empty", "messages", "empty_array")
    return messages


def _message(fields: Fields) -> ChatMessage:
    role = fields.required_choice("role", _ROLES)
    content, calls = _content(fields), _calls(fields) if role == "assistant" else []
    if content is None and not calls and "refusal" not in fields:
        fields.required("content")
    if role == "assistant":
        fields.refuse("audio", "function_call")
    message: ChatMessage = {
        # Templates know the older name.
        "role": "system" if role == "developer" else role,
        "content": content if content is not None or calls else fields.text("refusal"),
    }
    for name in _TEXTS:
        if (text := fields.text(name)) is not None:
            message[name] = text
    if calls:
        message["tool_calls"] = calls
    if role == "tool":
        fields.required("tool_call_id")
    return message


def _content(fields: Fields) -> str | None:
    """Read a text, or join the texts of a list of parts."""
    value = fields.values.get("content")
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise fields.error("content", "a text or a list of parts")
    texts = []
    for part in fields.objects("content"):
        kind = part.required("type")
        if not isinstance(kind, str) or kind not in ("text", "refusal"):
            text = f" must be text, this model reads nothing else; got {kind!r:.60}"
            raise part.fault("type", text, "unsupported_content_type")
        texts.append(part.required_text(kind))
    return "".join(texts)


def _calls(fields: Fields) -> list[ToolCall]:
    """Read the tool calls of an earlier answer."""
    calls: list[ToolCall] = []
    for call in fields.objects("tool_calls"):
        function = call.required_object("function")
        if call.text("type") not in (None, "function"):
            raise call.error("type", "function", "invalid_value")
        named: FunctionCall = {
            "name": function.required_text("name"),
            "arguments": read_arguments(function),
        }
        calls.append({"id": call.text("id") or "", "type": "function", "function": named})
    return calls


def read_arguments(function: Fields) -> JSONObject | str:
    """Parse the arguments; a text that is no JSON object stays a text."""
    text = function.text("arguments") or "{}"
    try:
        arguments: JSON = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return arguments if isinstance(arguments, dict) else text
