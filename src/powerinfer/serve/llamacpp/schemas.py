"""The bodies of llama-server's own routes as `/openapi.json` describes them."""

from powerinfer.serve.openai.schemas import json_body

__all__ = ["COMPLETION_BODY", "DETOKENIZE_BODY", "TOKENIZE_BODY"]

_TEXT, _SWITCH = {"type": "string"}, {"type": "boolean"}
_NUMBER, _WHOLE = {"type": "number"}, {"type": "integer"}
_IDS: dict[str, object] = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_MIXED: dict[str, object] = {"type": "array", "items": {"anyOf": [_TEXT, _WHOLE, _IDS]}}

TOKENIZE_BODY = json_body(
    {
        "model": _TEXT,
        "content": _TEXT,
        "add_special": _SWITCH,
        "parse_special": _SWITCH,
        "with_pieces": _SWITCH,
    },
    ["content"],
)
DETOKENIZE_BODY = json_body({"model": _TEXT, "tokens": _IDS}, ["tokens"])
COMPLETION_BODY = json_body(
    {
        "model": _TEXT,
        "prompt": {"anyOf": [_TEXT, _IDS, _MIXED]},
        "n_predict": {"type": "integer", "minimum": -1},
        "n_probs": {"type": "integer", "minimum": 0},
        "n_cmpl": {"type": "integer", "minimum": 1},
        "stream": _SWITCH,
        "stop": {"type": "array", "items": _TEXT},
        "temperature": _NUMBER,
        "top_k": _WHOLE,
        "top_p": _NUMBER,
        "min_p": _NUMBER,
        "typical_p": _NUMBER,
        "mirostat": _WHOLE,
        "repeat_penalty": {"type": "number", "minimum": 0.001, "maximum": 1000},
        "repeat_last_n": {"type": "integer", "minimum": -1},
        "presence_penalty": _NUMBER,
        "frequency_penalty": _NUMBER,
        "logit_bias": {"type": "array"},
        "grammar": _TEXT,
        "json_schema": {"type": "object"},
        "seed": _WHOLE,
        "ignore_eos": _SWITCH,
        "cache_prompt": _SWITCH,
        "return_tokens": _SWITCH,
        "post_sampling_probs": _SWITCH,
        "prompt_logprobs": _SWITCH,
    },
    ["prompt"],
)
