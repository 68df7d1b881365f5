"""The body of `/v1/responses` as `/openapi.json` describes it."""

from powerinfer.serve.openai.schemas import json_body

__all__ = ["RESPONSES_BODY"]

_TEXT, _SWITCH, _OBJECT = {"type": "string"}, {"type": "boolean"}, {"type": "object"}
_PART = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"enum": ["input_text", "output_text"]}, "text": _TEXT},
}
_MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "type": {"enum": ["message"]},
        "role": {"enum": ["system", "developer", "user", "assistant"]},
        "content": {"anyOf": [_TEXT, {"type": "array", "items": _PART}]},
    },
}
_CALL = {
    "type": "object",
    "required": ["type", "call_id", "name", "arguments"],
    "properties": {
        "type": {"enum": ["function_call"]},
        "call_id": _TEXT,
        "name": _TEXT,
        "arguments": _TEXT,
    },
}
_RESULT = {
    "type": "object",
    "required": ["type", "call_id", "output"],
    "properties": {"type": {"enum": ["function_call_output"]}, "call_id": _TEXT, "output": _TEXT},
}
_ITEMS = {"type": "array", "minItems": 1, "items": {"anyOf": [_MESSAGE, _CALL, _RESULT]}}
_TOOL = {
    "type": "object",
    "required": ["type", "name"],
    "properties": {
        "type": {"enum": ["function"]},
        "name": {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"},
        "description": _TEXT,
        "parameters": _OBJECT,
    },
}
RESPONSES_BODY = json_body(
    {
        "model": _TEXT,
        "input": {"anyOf": [_TEXT, _ITEMS]},
        "instructions": _TEXT,
        "max_output_tokens": {"type": "integer", "minimum": 1, "maximum": (1 << 31) - 1},
        "stream": _SWITCH,
        "store": _SWITCH,
        "previous_response_id": _TEXT,
        "temperature": {"type": "number", "minimum": 0, "maximum": 2},
        "top_p": {"type": "number", "minimum": 0, "maximum": 1},
        "tools": {"type": "array", "items": _TOOL, "maxItems": 128},
        "tool_choice": {"anyOf": [{"enum": ["none", "auto", "required"]}, _OBJECT]},
        "parallel_tool_calls": _SWITCH,
        "text": _OBJECT,
        "reasoning": _OBJECT,
        "metadata": _OBJECT,
    },
    ["input"],
)
