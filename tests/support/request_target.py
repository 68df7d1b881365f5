"""What fuzzing runs on bodies of requests: read one as each API does; only refusals come out."""

import json
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from api_client import embedded_tokenizer
from fake_engine import FakeEngine
from powerinfer.errors import PromptError
from powerinfer.serve.anthropic.request import read_request
from powerinfer.serve.bodies import parse_object
from powerinfer.serve.chat.plan import plan_chat
from powerinfer.serve.embeddings.request import read_request as read_embeddings
from powerinfer.serve.errors import ApiError
from powerinfer.serve.llamacpp.request import read_native
from powerinfer.serve.llamacpp.routes import detokenize, tokenize
from powerinfer.serve.openai.chat_request import read_chat
from powerinfer.serve.openai.completion_request import read_completion
from powerinfer.serve.responses.request import read_request as read_responses
from powerinfer.serve.responses.store import ResponseStore
from powerinfer.serve.served_model import ModelContext, ServedModel
from powerinfer.serve.settings import ServerSettings

__all__ = ["BODIES", "read_everything", "seeds"]

_TOOL = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
BODIES: list[dict[str, Any]] = [
    {
        "messages": [
            {"role": "system", "content": "a"},
            {"role": "user", "content": [{"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None, "tool_calls": [_CALL]},
            {"role": "tool", "content": "c", "tool_call_id": "c"},
        ],
        "tools": [{"type": "function", "function": _TOOL}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "max_tokens": 3,
    },
    {
        "messages": [{"role": "user", "content": "a"}],
        "logprobs": True,
        "top_logprobs": 2,
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}},
    },
    {"prompt": [[300, 301], "a"], "echo": True, "logprobs": 1, "logit_bias": {"5": -1}},
    {"prompt": "a", "n": 2, "stop": ["x"], "stream": True, "stream_options": {}, "seed": -1},
    {
        "messages": [{"role": "user", "content": "a"}],
        "max_tokens": 2,
        "system": "b",
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
    },
    {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "b"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "d"},
        ],
        "instructions": "e",
        "tools": [{"type": "function", **_TOOL}],
        "tool_choice": {"type": "function", "name": "f"},
        "max_output_tokens": 3,
    },
    {"input": "a", "text": {"format": {"type": "json_schema", "schema": {}}}, "reasoning": {}},
    {"input": [[300, 301], "a"], "encoding_format": "base64", "pooling": "last"},
    {"prompt": "a", "n_predict": 3, "n_probs": 2, "grammar": 'root ::= "a"', "samplers": ["top_k"]},
    {"content": "a", "add_special": True, "with_pieces": True, "tokens": [300, 301]},
]


def seeds() -> list[bytes]:
    """A valid body of each kind."""
    return [json.dumps(body).encode() for body in BODIES]


def read_everything(path: Path) -> None:
    """Read a file as the body of a request of each route."""
    context = _context()
    with suppress(ApiError):
        body = parse_object(path.read_bytes())
        with suppress(ApiError, PromptError):
            plan_chat(context, read_chat(body, context).chat)
        with suppress(ApiError, PromptError):
            plan_chat(context, read_request(body, context).chat)
        with suppress(ApiError, PromptError):
            plan_chat(context, read_responses(body, context, ResponseStore()).chat)
        for read in (read_completion, read_embeddings, read_native, tokenize, detokenize):
            with suppress(ApiError, PromptError):
                read(body, context)


@cache
def _context() -> ModelContext:
    served = ServedModel(engine=FakeEngine(), tokenizer=embedded_tokenizer(), context_length=512)
    nothing_runs: Any = None
    return ModelContext(
        settings=ServerSettings(), model=served, engine=nothing_runs, workers=nothing_runs
    )
