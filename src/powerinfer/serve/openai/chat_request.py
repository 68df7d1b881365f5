"""The body of `/v1/chat/completions`, read and checked."""

from dataclasses import dataclass

from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.serve.chat.plan import Chat
from powerinfer.serve.context import ServerContext
from powerinfer.serve.fields import Fields
from powerinfer.serve.openai.messages import read_messages
from powerinfer.serve.openai.options import Streaming, check_model, read_streaming
from powerinfer.serve.openai.sampling import MAX_TOKENS, read_response_format, read_sampling
from powerinfer.serve.openai.tools import read_tool_choice, read_tools
from powerinfer.values import JSONObject

__all__ = ["ChatRequest", "read_chat"]

MAX_TOP_LOGPROBS = 20
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
# Variables that the server sets itself.
_OWN_VARIABLES = ("messages", "tools", "bos_token", "eos_token", "add_generation_prompt")


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request to `/v1/chat/completions`."""

    model: str
    chat: Chat
    streaming: Streaming


def read_chat(body: JSONObject, context: ServerContext) -> ChatRequest:
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
        template_variables=_variables(fields),
    )
    return ChatRequest(model, chat, streaming)


def _max_tokens(fields: Fields, context: ServerContext) -> int | None:
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


def _variables(fields: Fields) -> dict[str, object]:
    """Read further variables of the chat template."""
    given = fields.object("chat_template_kwargs")
    variables: dict[str, object] = {} if given is None else dict(given.values)
    for name in variables:
        if name in _OWN_VARIABLES or not name.isidentifier():
            raise fields.fault("chat_template_kwargs", f" cannot set {name[:60]!r}")
    effort = fields.choice("reasoning_effort", _EFFORTS)
    return variables if effort is None else {"reasoning_effort": effort, **variables}
