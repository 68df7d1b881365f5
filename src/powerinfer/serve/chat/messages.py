"""Messages and tools of a chat as dictionaries in OpenAI's form, which chat templates read."""

from typing import NotRequired, TypedDict

from powerinfer.values import JSONObject

__all__ = ["ChatMessage", "Function", "FunctionCall", "FunctionTool", "ToolCall"]


class FunctionCall(TypedDict):
    """Name and arguments of a call; arguments that are no JSON object stay a text."""

    name: str
    arguments: JSONObject | str


class ToolCall(TypedDict):
    """A tool call in an earlier answer."""

    id: str
    type: str
    function: FunctionCall


class ChatMessage(TypedDict):
    """A message; `content` may be None if there are `tool_calls`."""

    role: str
    content: str | None
    name: NotRequired[str]
    tool_call_id: NotRequired[str]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]


class Function(TypedDict):
    """A function that a model may call; `parameters` is the JSON schema of its arguments."""

    name: str
    description: NotRequired[str]
    parameters: NotRequired[JSONObject]


class FunctionTool(TypedDict):
    """A tool, which is always a function."""

    type: str
    function: Function
