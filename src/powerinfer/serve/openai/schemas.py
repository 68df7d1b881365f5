"""The bodies of OpenAI's API as `/openapi.json` describes them."""

from collections.abc import Mapping

__all__ = ["CHAT_BODY", "COMPLETION_BODY", "PROMPTS", "json_body"]


def json_body(properties: Mapping[str, object], required: list[str]) -> dict[str, object]:
    """Describe a route's body, a JSON object."""
    schema = {"type": "object", "properties": properties, "required": required}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _number(low: float, high: float) -> dict[str, object]:
    return {"type": "number", "minimum": low, "maximum": high}


def _whole(low: int, high: int = (1 << 31) - 1) -> dict[str, object]:
    return {"type": "integer", "minimum": low, "maximum": high}


def _list(of: Mapping[str, object], most: int | None = None) -> dict[str, object]:
    return {"type": "array", "items": of} | ({} if most is None else {"maxItems": most})


_TEXT, _SWITCH, _OBJECT = {"type": "string"}, {"type": "boolean"}, {"type": "object"}
_SHARED: dict[str, object] = {
    "model": _TEXT,
    "stream": _SWITCH,
    "stream_options": {"type": "object", "properties": {"include_usage": _SWITCH}},
    "temperature": _number(0, 2),
    "top_p": _number(0, 1),
    "top_k": _whole(-1),
    "min_p": _number(0, 1),
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "repeat_penalty": _number(0.001, 1000),
    "repeat_last_n": _whole(0),
    "logit_bias": {"type": "object", "additionalProperties": _number(-100, 100)},
    "n": _whole(1, 128),
    "seed": {"type": "integer"},
    "stop": {"anyOf": [_TEXT, _list(_TEXT, 4)]},
    "ignore_eos": _SWITCH,
    "draft": {"type": "string", "pattern": "^(auto|off|ngram(:([1-9]|[1-5][0-9]|6[0-4]))?)$"},
    "response_format": {
        "type": "object",
        "properties": {"type": {"enum": ["text", "json_object", "json_schema"]}},
    },
}
_MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": {"anyOf": [_TEXT, _list(_OBJECT)]},
    },
}
CHAT_BODY = json_body(
    {
        "messages": _list(_MESSAGE),
        "max_tokens": _whole(1),
        "max_completion_tokens": _whole(1),
        "logprobs": _SWITCH,
        "top_logprobs": _whole(0, 20),
        "tools": _list(_OBJECT, 128),
        "tool_choice": {"anyOf": [{"enum": ["none", "auto", "required"]}, _OBJECT]},
        "parallel_tool_calls": _SWITCH,
        **_SHARED,
    },
    ["messages"],
)
PROMPTS = {"anyOf": [_TEXT, _list(_TEXT), _list({"type": "integer"}), _list(_list(_whole(0)))]}
COMPLETION_BODY = json_body(
    {
        "prompt": PROMPTS,
        "max_tokens": _whole(0),
        "logprobs": _whole(0, 5),
        "echo": _SWITCH,
        "best_of": _whole(1, 20),
        **_SHARED,
    },
    ["prompt"],
)
