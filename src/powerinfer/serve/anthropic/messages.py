"""Messages in Anthropic's form, converted to OpenAI's form, which chat templates read."""

from collections.abc import Iterator

from powerinfer.serve.chat.messages import ChatMessage, FunctionCall, ToolCall
from powerinfer.serve.errors import ApiError, bad_request
from powerinfer.serve.fields import Fields

__all__ = ["read_messages"]


def read_messages(fields: Fields) -> tuple[list[ChatMessage], str]:
    """Read the messages of a request, and the prefill: the given beginning of the answer."""
    fields.required("messages")
    messages = list(_system(fields))
    names: dict[str, str] = {}
    listed = list(fields.objects("messages"))
    if not listed:
        raise bad_request("messages is empty", "messages", "empty_array")
    for each in listed:
        each.required("role")
        each.required("content")
        is_user = each.choice("role", ("user", "assistant", "system")) != "assistant"
        messages += _of_user(each, names) if is_user else [_of_assistant(each, names)]
    return messages, _taken_prefill(messages)


def _system(fields: Fields) -> Iterator[ChatMessage]:
    if "system" in fields:
        yield {"role": "system", "content": _joined(fields, "system")}


def _of_user(fields: Fields, names: dict[str, str]) -> list[ChatMessage]:
    """Convert a user's message: each tool result becomes a message, the text another one."""
    results: list[ChatMessage] = []
    texts: list[str] = []
    for kind, block in _blocks(fields, "content"):
        if kind == "text":
            texts.append(block.required_text("text"))
        elif kind == "tool_result":
            results.append(_result(block, names))
        else:
            raise _unreadable(block, "text or tool_result")
    if texts or not results:
        results.append({"role": fields.required_text("role"), "content": "".join(texts)})
    return results


def _of_assistant(fields: Fields, names: dict[str, str]) -> ChatMessage:
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    for kind, block in _blocks(fields, "content"):
        if kind == "text":
            texts.append(block.required_text("text"))
        elif kind == "thinking":
            reasoning.append(block.text("thinking") or "")
        elif kind == "tool_use":
            calls.append(_call(block, names))
        elif kind != "redacted_thinking":
            raise _unreadable(block, "text, thinking or tool_use")
    message: ChatMessage = {"role": "assistant", "content": "".join(texts)}
    if any(reasoning):
        message["reasoning_content"] = "\n\n".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    return message


def _result(block: Fields, names: dict[str, str]) -> ChatMessage:
    call_id = block.required_text("tool_use_id")
    content = _joined(block, "content") if "content" in block else ""
    if block.switch("is_error"):
        content = f"Error: {content}"
    message: ChatMessage = {"role": "tool", "tool_call_id": call_id, "content": content}
    if call_id in names:
        message["name"] = names[call_id]
    return message


def _call(block: Fields, names: dict[str, str]) -> ToolCall:
    for name in ("id", "name"):
        block.required(name)
    given = block.object("input")
    call_id, name = block.required_text("id"), block.required_text("name")
    names[call_id] = name
    arguments = {} if given is None else dict(given.values)
    function: FunctionCall = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def _joined(fields: Fields, name: str) -> str:
    """Join a text or a list of text blocks."""
    texts = []
    for kind, block in _blocks(fields, name):
        if kind != "text":
            raise _unreadable(block, "text")
        texts.append(block.required_text("text"))
    return "".join(texts)


def _blocks(fields: Fields, name: str) -> Iterator[tuple[str, Fields]]:
    """Yield type and fields of each content block; a plain text counts as one block."""
    value = fields.values.get(name)
    if isinstance(value, str):
        yield "text", Fields({"type": "text", "text": value}, fields.path(name))
        return
    if not isinstance(value, list):
        raise fields.error(name, "a text or a list of blocks")
    for block in fields.objects(name):
        yield block.required_text("type"), block


def _unreadable(block: Fields, wanted: str) -> ApiError:
    return block.error("type", wanted, "unsupported_content_type")


def _taken_prefill(messages: list[ChatMessage]) -> str:
    """Remove a last message of the assistant and return its text, which the answer continues."""
    last = messages[-1]
    if last["role"] != "assistant" or "tool_calls" in last:
        return ""
    messages.pop()
    return (last["content"] or "").rstrip()
