"""The bodies of Anthropic's API as `/openapi.json` describes them."""

from powerinfer.serve.openai.schemas import json_body

__all__ = ["COUNT_BODY", "MESSAGES_BODY"]

_TEXT, _SWITCH, _OBJECT = {"type": "string"}, {"type": "boolean"}, {"type": "object"}
_BLOCK = {
    "type": "object",
    "required": ["type"],
    "properties": {
        "type": {"enum": ["text", "tool_use", "tool_result", "thinking", "redacted_thinking"]},
        "text": _TEXT,
    },
}
_CONTENT = {"anyOf": [_TEXT, {"type": "array", "items": _BLOCK}]}
_MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {"role": {"enum": ["user", "assistant"]}, "content": _CONTENT},
}
_TOOL = {
    "type": "object",
    "required": ["name", "input_schema"],
    "properties": {
        "name": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,128}$"},
        "description": _TEXT,
        "input_schema": _OBJECT,
    },
}
_CHOICE = {
    "type": "object",
    "required": ["type"],
    "properties": {
        "type": {"enum": ["auto", "any", "tool", "none"]},
        "name": _TEXT,
        "disable_parallel_tool_use": _SWITCH,
    },
}
_COUNTED: dict[str, object] = {
    "model": _TEXT,
    "messages": {"type": "array", "items": _MESSAGE, "minItems": 1},
    "system": _CONTENT,
    "tools": {"type": "array", "items": _TOOL, "maxItems": 128},
    "tool_choice": _CHOICE,
    "thinking": {
        "type": "object",
        "properties": {"type": {"enum": ["enabled", "disabled", "adaptive"]}},
    },
}
_SAMPLED: dict[str, object] = {
    "max_tokens": {"type": "integer", "minimum": 1},
    "stop_sequences": {"type": "array", "items": _TEXT},
    "stream": _SWITCH,
    "temperature": {"type": "number", "minimum": 0, "maximum": 1},
    "top_p": {"type": "number", "minimum": 0, "maximum": 1},
    "top_k": {"type": "integer", "minimum": 0},
    "metadata": _OBJECT,
}
COUNT_BODY = json_body(_COUNTED, ["model", "messages"])
MESSAGES_BODY = json_body({**_COUNTED, **_SAMPLED}, ["model", "messages", "max_tokens"])
