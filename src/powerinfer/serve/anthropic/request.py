"""The body of `/v1/messages`, read and checked."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from powerinfer.serve.anthropic.messages import read_messages
from powerinfer.serve.chat.messages import Function, FunctionTool
from powerinfer.serve.chat.plan import Chat
from powerinfer.serve.fields import Fields
from powerinfer.serve.openai.options import check_model
from powerinfer.serve.openai.sampling import MAX_TOKENS, read_sampling
from powerinfer.serve.served_model import ModelContext
from powerinfer.values import JSONObject

__all__ = ["MessagesRequest", "read_request"]

MAX_STOPS = 64
MAX_TOOLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")


@dataclass(frozen=True, slots=True)
class MessagesRequest:
    """A request to `/v1/messages`."""

    model: str
    chat: Chat
    stop_sequences: tuple[str, ...]
    is_streamed: bool


def read_request(
    body: JSONObject, context: ModelContext, *, needs_limit: bool = True
) -> MessagesRequest:
    """Read a body, which must have `max_tokens` if it `needs_limit`; unknown fields are ignored."""
    fields = Fields(body)
    fields.required("model")
    model = check_model(fields, context)
    if needs_limit:
        fields.required("max_tokens")
    fields.refuse("mcp_servers", "container")
    messages, prefill = read_messages(fields)
    given_tools = _tools(fields)
    stops = _stop_sequences(fields)
    fields.number("temperature", 0, 1)
    params = read_sampling(
        fields,
        context,
        max_tokens=fields.whole("max_tokens", 1, MAX_TOKENS),
        stop=stops,
        n=1,
        logprobs=None,
        **_output_form(fields),
    )
    tools, must_call, parallel = _tool_choice(fields, given_tools)
    chat = Chat(
        messages=messages,
        params=params,
        tools=tools,
        must_call=must_call,
        parallel_tool_calls=parallel,
        template_variables=_thinking(fields),
        prefill=prefill,
    )
    return MessagesRequest(model, chat, stops, fields.switch("stream"))


def _stop_sequences(fields: Fields) -> tuple[str, ...]:
    given = fields.items("stop_sequences") or []
    stops = tuple(each for each in given if isinstance(each, str) and each)
    if len(stops) < len(given):
        raise fields.error("stop_sequences", "a list of texts that are not empty")
    if len(stops) > MAX_STOPS:
        raise fields.error("stop_sequences", f"at most {MAX_STOPS} texts")
    return stops


def _tools(fields: Fields) -> list[FunctionTool]:
    """Read the tools and convert them to OpenAI's form."""
    tools: list[FunctionTool] = []
    for tool in fields.objects("tools"):
        if tool.text("type") not in (None, "custom"):
            raise tool.error("type", "custom: this server runs no tools", "unsupported_value")
        name = tool.required_text("name")
        if _NAME.fullmatch(name) is None:
            raise tool.error("name", "letters, digits, hyphens and underscores, at most 128")
        if any(name == each["function"]["name"] for each in tools):
            raise tool.fault("name", f": there are two tools {name!r}")
        schema = tool.required_object("input_schema")
        function: Function = {
            "name": name,
            "description": tool.text("description") or "",
            "parameters": dict(schema.values),
        }
        tools.append({"type": "function", "function": function})
    if len(tools) > MAX_TOOLS:
        raise fields.error("tools", f"at most {MAX_TOOLS} tools", "array_above_max_length")
    return tools


def _tool_choice(
    fields: Fields, tools: Sequence[FunctionTool]
) -> tuple[Sequence[FunctionTool], Collection[str], bool]:
    """Read `tool_choice` as `tools`, `must_call` and `parallel_tool_calls` of a `Chat`."""
    choice = fields.object("tool_choice")
    if choice is None:
        return tools, (), True
    names = [tool["function"]["name"] for tool in tools]
    kind = choice.required_choice("type", ("auto", "any", "none", "tool"))
    parallel = not choice.switch("disable_parallel_tool_use")
    if kind in ("any", "tool") and not names:
        raise choice.error("type", "auto or none: there are no tools", "invalid_value")
    if kind == "tool":
        return tools, (choice.required_choice("name", names),), parallel
    return () if kind == "none" else tools, names if kind == "any" else (), parallel


def _thinking(fields: Fields) -> dict[str, object]:
    """Read `thinking` as a variable that chat templates know."""
    thinking = fields.object("thinking")
    if thinking is None:
        return {}
    kind = thinking.required_choice("type", ("enabled", "disabled", "adaptive"))
    return {"enable_thinking": kind != "disabled"}


def _output_form(fields: Fields) -> dict[str, object]:
    """Read `output_config.format`, or the older `output_format`, as a sampling parameter."""
    config = fields.object("output_config")
    wanted = fields.object("output_format") if config is None else config.object("format")
    if wanted is None:
        return {}
    wanted.required_choice("type", ("json_schema",))
    return {"json_schema": dict(wanted.required_object("schema").values)}
