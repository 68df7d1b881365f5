"""Messages in Ollama's form, converted to OpenAI's form, which chat templates read."""

from collections import deque

from powerinfer.serve.chat.messages import ChatMessage, FunctionCall, ToolCall
from powerinfer.serve.fields import Fields

__all__ = ["read_messages", "refuse_images"]

_ROLES = ("system", "user", "assistant", "tool")


def read_messages(fields: Fields) -> list[ChatMessage]:
    """Read the messages of a request; there may be none."""
    # Tool results name no call: they answer the calls in order.
    unanswered: deque[str] = deque()
    return [_message(each, unanswered) for each in fields.objects("messages")]


def refuse_images(fields: Fields) -> None:
    """Refuse images, which no model of this server reads."""
    fields.refuse("images", reason="are not supported: this model reads text only")


def _message(fields: Fields, unanswered: deque[str]) -> ChatMessage:
    role = fields.required_choice("role", _ROLES)
    refuse_images(fields)
    message: ChatMessage = {"role": role, "content": fields.text("content") or ""}
    if role == "assistant":
        if reasoning := fields.text("thinking"):
            message["reasoning_content"] = reasoning
        if calls := [_call(each) for each in fields.objects("tool_calls")]:
            message["tool_calls"] = _with_ids(calls)
            unanswered.clear()
            unanswered.extend(call["id"] for call in message["tool_calls"])
    if role == "tool":
        if name := fields.text("tool_name") or fields.text("name"):
            message["name"] = name
        given = fields.text("tool_call_id")
        message["tool_call_id"] = given or (unanswered.popleft() if unanswered else "call00000")
    return message


def _call(fields: Fields) -> ToolCall:
    function = fields.required_object("function")
    arguments = function.object("arguments")
    named: FunctionCall = {
        "name": function.required_text("name"),
        "arguments": {} if arguments is None else dict(arguments.values),
    }
    return {"id": fields.text("id") or "", "type": "function", "function": named}


def _with_ids(calls: list[ToolCall]) -> list[ToolCall]:
    """Name the calls that have no id; some templates want ids of nine letters and digits."""
    return [{**call, "id": call["id"] or f"call{n:05}"} for n, call in enumerate(calls)]
