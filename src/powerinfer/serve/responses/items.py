"""Items of a response's input, converted to messages, which chat templates read."""

from collections.abc import Sequence

from powerinfer.serve.chat.messages import ChatMessage, ToolCall
from powerinfer.serve.fields import Fields
from powerinfer.serve.openai.messages import read_arguments
from powerinfer.values import JSON, JSONObject

__all__ = ["read_input", "read_messages"]

_ROLES = ("user", "assistant", "system", "developer")
_TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
"""By type of a part, the field with its text."""


def read_input(fields: Fields) -> list[JSONObject]:
    """Read the items of a request, at least one; a text is a message of the user."""
    value = fields.required("input")
    if isinstance(value, str):
        message: JSONObject = {"type": "message", "role": "user", "content": value}
        return [message]
    if not isinstance(value, list):
        raise fields.error("input", "a text or a list of items")
    items = [dict(item.values) for item in fields.objects("input")]
    if not items:
        raise fields.fault("input", " is empty", "empty_array")
    return items


def read_messages(items: Sequence[JSONObject], num_earlier: int) -> list[ChatMessage]:
    """Convert items; those after the first `num_earlier` are the request's, whose errors count."""
    conversation = _Conversation()
    for number, item in enumerate(items, -num_earlier):
        conversation.add(Fields(item, f"input[{number}]"))
    return conversation.messages


class _Conversation:
    """Messages so far; consecutive items of one answer become one message."""

    def __init__(self) -> None:
        self.messages: list[ChatMessage] = []
        self._names: dict[str, str] = {}

    def add(self, item: Fields) -> None:
        """Add an item.

        Raises:
            ApiError: it is no item that this server reads.
        """
        kind = item.text("type") or "message"
        if kind == "message":
            self._add_message(item)
        elif kind == "reasoning":
            self._answer(is_new=True)["reasoning_content"] = _reasoning(item)
        elif kind == "function_call":
            self._add_call(item)
        elif kind == "function_call_output":
            self._add_result(item)
        else:
            wanted = "message, reasoning, function_call or function_call_output"
            raise item.error("type", wanted, "unsupported_value")

    def _add_message(self, item: Fields) -> None:
        role = item.required_choice("role", _ROLES)
        text = _text(item, "content")
        if role == "assistant":
            self._answer(is_new=True)["content"] = text
        else:
            # Templates know the older name.
            name = "system" if role == "developer" else role
            self.messages.append({"role": name, "content": text})

    def _add_call(self, item: Fields) -> None:
        call_id, name = item.required_text("call_id"), item.required_text("name")
        self._names[call_id] = name
        item.required("arguments")
        call: ToolCall = {
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": read_arguments(item)},
        }
        self._answer(is_new=False).setdefault("tool_calls", []).append(call)

    def _add_result(self, item: Fields) -> None:
        call_id = item.required_text("call_id")
        message: ChatMessage = {
            "role": "tool",
            "tool_call_id": call_id,
            "content": _text(item, "output"),
        }
        if call_id in self._names:
            message["name"] = self._names[call_id]
        self.messages.append(message)

    def _answer(self, *, is_new: bool) -> ChatMessage:
        """Return the message of the answer; what `is_new` does not go on after text or calls."""
        last = self.messages[-1] if self.messages else None
        if last is not None and last["role"] == "assistant":
            is_over = is_new and (last["content"] or "tool_calls" in last)
            if not is_over:
                return last
        message: ChatMessage = {"role": "assistant", "content": ""}
        self.messages.append(message)
        return message


def _text(fields: Fields, name: str) -> str:
    """Read a text, or join the texts of a list of parts."""
    value: JSON = fields.required(name)
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise fields.error(name, "a text or a list of parts")
    texts = []
    for part in fields.objects(name):
        kind = part.required_text("type")
        if kind not in _TEXTS:
            text = f" must be text, this model reads nothing else; got {kind!r:.60}"
            raise part.fault("type", text, "unsupported_content_type")
        texts.append(part.required_text(_TEXTS[kind]))
    return "".join(texts)


def _reasoning(item: Fields) -> str:
    """Read the reasoning itself, or else its summary."""
    name = "content" if "content" in item else "summary"
    return "\n\n".join(part.text("text") or "" for part in item.objects(name))
