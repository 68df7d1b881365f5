"""The bodies of Ollama's API as `/openapi.json` describes them."""

from powerinfer.serve.openai.schemas import json_body

__all__ = ["CHAT_BODY", "EMBED_BODY", "GENERATE_BODY", "SHOW_BODY"]

_TEXT, _SWITCH, _OBJECT = {"type": "string"}, {"type": "boolean"}, {"type": "object"}
_NUMBER, _WHOLE = {"type": "number"}, {"type": "integer"}
_OPTIONS = {
    "type": "object",
    "properties": {
        "num_ctx": {"type": "integer", "minimum": 1},
        "num_predict": {"type": "integer", "maximum": (1 << 31) - 1},
        "temperature": {"type": "number", "minimum": 0, "maximum": 2},
        "top_k": {"type": "integer", "minimum": 0, "maximum": 1000},
        "top_p": {"type": "number", "minimum": 0, "maximum": 1},
        "min_p": {"type": "number", "minimum": 0, "maximum": 1},
        "seed": _WHOLE,
        "stop": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]},
        "repeat_penalty": {"type": "number", "minimum": 0.001, "maximum": 1000},
        "repeat_last_n": {"type": "integer", "minimum": -1, "maximum": 4096},
        "presence_penalty": {"type": "number", "minimum": -2, "maximum": 2},
        "frequency_penalty": {"type": "number", "minimum": -2, "maximum": 2},
    },
}
_MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"enum": ["system", "user", "assistant", "tool"]},
        "content": _TEXT,
        "thinking": _TEXT,
        "tool_calls": {"type": "array", "items": _OBJECT},
        "tool_name": _TEXT,
    },
}
_SHARED: dict[str, object] = {
    "model": _TEXT,
    "stream": _SWITCH,
    "format": {"anyOf": [{"enum": ["", "json"]}, _OBJECT]},
    "options": _OPTIONS,
    "keep_alive": {"anyOf": [_NUMBER, _TEXT]},
    "think": {"anyOf": [_SWITCH, {"enum": ["low", "medium", "high"]}]},
    "logprobs": _SWITCH,
    "top_logprobs": {"type": "integer", "minimum": 0, "maximum": 20},
}
CHAT_BODY = json_body(
    {
        "messages": {"type": "array", "items": _MESSAGE},
        "tools": {"type": "array", "items": _OBJECT, "maxItems": 128},
        **_SHARED,
    },
    ["model"],
)
GENERATE_BODY = json_body({"prompt": _TEXT, "system": _TEXT, "raw": _SWITCH, **_SHARED}, ["model"])
SHOW_BODY = json_body({"model": _TEXT}, ["model"])
EMBED_BODY = json_body(
    {
        "model": _TEXT,
        "input": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]},
        "truncate": _SWITCH,
        "options": _OPTIONS,
        "keep_alive": {"anyOf": [_NUMBER, _TEXT]},
    },
    ["model", "input"],
)
