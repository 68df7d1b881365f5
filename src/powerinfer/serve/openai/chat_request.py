"""The body of `/v1/chat/completions`, read and checked."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.serve.chat.messages import Function, FunctionTool
from powerinfer.serve.chat.plan import Chat
from powerinfer.serve.fields import Fields
from powerinfer.serve.openai.messages import read_messages
from powerinfer.serve.openai.options import Streaming, check_model, read_streaming
from powerinfer.serve.openai.sampling import MAX_TOKENS, read_response_format, read_sampling
from powerinfer.serve.served_model import ModelContext
from powerinfer.values import JSONObject

__all__ = [
    "EFFORTS",
    "ChatRequest",
    "check_number",
    "read_chat",
    "read_function",
    "read_tool_choice",
    "read_tools",
    "read_variables",
]

MAX_TOOLS = 128
_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_CHOICES = ("none", "auto", "required")

MAX_TOP_LOGPROBS = 20
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
# Variables that the server sets itself.
_OWN_VARIABLES = ("messages", "tools", "bos_token", "eos_token", "add_generation_prompt")


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request to `/v1/chat/completions`."""

    model: str
    chat: Chat
    streaming: Streaming


def read_chat(body: JSONObject, context: ModelContext) -> ChatRequest:
    """Read a body; unknown fields are ignored."""
    fields = Fields(body)
    model = check_model(fields, context)
    messages = read_messages(fields)
    streaming = read_streaming(fields)
    _refuse(fields)
    given_tools = read_tools(fields)
    given = read_response_format(fields)
    given["max_tokens"] = _max_tokens(fields, context)
    given["logprobs"] = _logprobs(fields)
    params: SamplingParams = read_sampling(fields, context, **given)
    tools, must_call = read_tool_choice(fields, given_tools)
    chat = Chat(
        messages=messages,
        params=params,
        tools=tools,
        must_call=must_call,
        parallel_tool_calls=fields.switch("parallel_tool_calls", default=True),
        template_variables=read_variables(fields, fields.choice("reasoning_effort", EFFORTS)),
    )
    return ChatRequest(model, chat, streaming)


def _max_tokens(fields: Fields, context: ModelContext) -> int | None:
    """Read the limit under either name; the default is the server's."""
    newer = fields.whole("max_completion_tokens", 1, MAX_TOKENS)
    older = fields.whole("max_tokens", 1, MAX_TOKENS)
    if newer is not None and older is not None and newer != older:
        raise fields.fault("max_tokens", " and max_completion_tokens differ: give one of them")
    given = newer if newer is not None else older
    return context.settings.max_tokens if given is None else given


def _logprobs(fields: Fields) -> int | None:
    """Read the number of alternatives to list; None for no log probabilities."""
    asked = fields.switch("logprobs")
    top = fields.whole("top_logprobs", 0, MAX_TOP_LOGPROBS)
    if top and not asked:
        raise fields.fault("top_logprobs", " needs logprobs to be true")
    return (top or 0) if asked else None


def _refuse(fields: Fields) -> None:
    fields.refuse("audio")
    # Even an empty one requests a search.
    fields.refuse("web_search_options", may_be_empty=False)
    fields.refuse("functions", "function_call", reason="is the old name: use tools and tool_choice")
    modalities = fields.items("modalities")
    if modalities not in (None, ["text"]):
        raise fields.error("modalities", "['text']", "unsupported_value")


def read_variables(fields: Fields, effort: str | None) -> dict[str, object]:
    """Read further variables of the chat template; `effort` is that of reasoning."""
    given = fields.object("chat_template_kwargs")
    variables: dict[str, object] = {} if given is None else dict(given.values)
    for name in variables:
        if name in _OWN_VARIABLES or not name.isidentifier():
            raise fields.fault("chat_template_kwargs", f" cannot set {name[:60]!r}")
    return variables if effort is None else {"reasoning_effort": effort, **variables}


def read_tools(fields: Fields) -> list[FunctionTool]:
    """Read the tools that an answer may call."""
    tools: list[FunctionTool] = []
    for tool in fields.objects("tools"):
        tool.required_choice("type", ("function",))
        tools.append(read_function(tool.required_object("function"), tools))
    check_number(fields, tools)
    return tools


def read_function(function: Fields, others: Sequence[FunctionTool]) -> FunctionTool:
    """Read a function, whose name none of the others may have, as a tool."""
    name = _name(function)
    if any(name == each["function"]["name"] for each in others):
        raise function.fault("name", f": there are two tools {name!r}")
    parameters = function.object("parameters")
    described: Function = {"name": name}
    description = function.text("description")
    if description is not None:
        described["description"] = description
    if parameters is not None:
        described["parameters"] = dict(parameters.values)
    return {"type": "function", "function": described}


def check_number(fields: Fields, tools: Sequence[FunctionTool]) -> None:
    """Refuse more tools than a request may have."""
    if len(tools) > MAX_TOOLS:
        raise fields.error("tools", f"at most {MAX_TOOLS} tools", "array_above_max_length")


def read_tool_choice(
    fields: Fields, tools: Sequence[FunctionTool]
) -> tuple[Sequence[FunctionTool], Collection[str]]:
    """Read the tools that the answer may call, and the names of those of which it must call one."""
    value = fields.values.get("tool_choice")
    if value is None:
        return tools, ()
    names = [tool["function"]["name"] for tool in tools]
    if isinstance(value, str):
        choice = fields.required_choice("tool_choice", _CHOICES)
        if choice == "required" and not tools:
            raise fields.error("tool_choice", "none: there are no tools", "invalid_value")
        return () if choice == "none" else tools, names if choice == "required" else ()
    function = fields.required_object("tool_choice").object("function")
    if function is None:
        raise fields.error("tool_choice", "none, auto, required or the name of a function")
    name = _name(function)
    if name not in names:
        raise function.fault("name", f": there is no tool {name!r}")
    return tools, (name,)


def _name(function: Fields) -> str:
    name = function.required_text("name")
    if _NAME.fullmatch(name) is None:
        wanted = "letters, digits, dots, hyphens and underscores, at most 64"
        raise function.error("name", wanted, "invalid_value")
    return name
