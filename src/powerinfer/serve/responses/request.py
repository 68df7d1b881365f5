"""The body of `/v1/responses`, read and checked."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.serve.chat.messages import ChatMessage, FunctionTool
from powerinfer.serve.chat.plan import Chat
from powerinfer.serve.fields import Fields
from powerinfer.serve.openai.chat_request import (
    EFFORTS,
    check_number,
    read_function,
    read_tool_choice,
    read_variables,
)
from powerinfer.serve.openai.options import check_model
from powerinfer.serve.openai.sampling import MAX_TOKENS, read_sampling
from powerinfer.serve.responses.items import read_input, read_messages
from powerinfer.serve.responses.store import ResponseStore
from powerinfer.serve.served_model import ModelContext
from powerinfer.values import JSONObject

__all__ = ["ResponsesRequest", "read_request"]

_INCLUDABLE = (
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
)
"""What a response has nothing of; reasoning is not encrypted here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesRequest:
    """A request to `/v1/responses`.

    Attributes:
        items: input, after that of the conversation before it.
        settings: fields of the response that repeat the request.
    """

    chat: Chat
    items: Sequence[JSONObject]
    settings: Mapping[str, object]
    is_streamed: bool
    is_stored: bool


def read_request(body: JSONObject, context: ModelContext, store: ResponseStore) -> ResponsesRequest:
    """Read a body, and the response that it follows; unknown fields are ignored."""
    fields = Fields(body)
    model = check_model(fields, context)
    _refuse(fields)
    earlier: list[JSONObject] = []
    previous = fields.text("previous_response_id")
    if previous is not None:
        stored = store.get(previous, param="previous_response_id")
        earlier = [*stored.items, *stored.output]
    items = earlier + read_input(fields)
    messages = _with_instructions(fields, read_messages(items, len(earlier)))
    given_tools = _tools(fields)
    tools, must_call = _tool_choice(fields, given_tools)
    text_format, form = _text_format(fields)
    limit = fields.whole("max_output_tokens", 1, MAX_TOKENS)
    params = read_sampling(
        fields,
        context,
        max_tokens=context.settings.max_tokens if limit is None else limit,
        n=1,
        logprobs=None,
        **form,
    )
    effort = _effort(fields)
    chat = Chat(
        messages=messages,
        params=params,
        tools=tools,
        must_call=must_call,
        parallel_tool_calls=fields.switch("parallel_tool_calls", default=True),
        template_variables=read_variables(fields, effort),
    )
    is_stored = fields.switch("store", default=True)
    settings = {
        "model": model,
        "max_output_tokens": limit,
        "previous_response_id": previous,
        "reasoning": {"effort": effort, "summary": None},
        "store": is_stored,
        "text": {"format": text_format},
        **_repeated(fields, chat),
    }
    return ResponsesRequest(
        chat=chat,
        items=items,
        settings=settings,
        is_streamed=_is_streamed(fields),
        is_stored=is_stored,
    )


def _refuse(fields: Fields) -> None:
    fields.refuse("background", "conversation", "prompt", "context_management")
    fields.refuse("moderation", "image", "top_logprobs", "logprobs")
    fields.refuse("response_format", reason="is of another route: use text.format")
    fields.refuse("max_tokens", "max_completion_tokens", reason="is max_output_tokens here")
    fields.refuse("reasoning_effort", reason="is reasoning.effort here")
    fields.whole("n", 1, 1)
    if fields.text("truncation") not in (None, "disabled"):
        raise fields.error("truncation", "disabled", "unsupported_value")
    for name in fields.items("include") or ():
        if name not in _INCLUDABLE:
            raise fields.fault("include", f": {name!r:.60} is not supported", "unsupported_value")


def _is_streamed(fields: Fields) -> bool:
    is_streamed = fields.switch("stream")
    options = fields.object("stream_options")
    if options is not None and not is_streamed:
        raise fields.fault("stream_options", " needs stream to be true")
    return is_streamed


def _with_instructions(fields: Fields, messages: list[ChatMessage]) -> list[ChatMessage]:
    """Put the instructions in front; many templates know one system message only."""
    text = fields.text("instructions")
    if not text:
        return messages
    if messages[0]["role"] == "system":
        first, *messages = messages
        text = f"{text}\n\n{first['content']}"
    return [{"role": "system", "content": text}, *messages]


def _tools(fields: Fields) -> list[FunctionTool]:
    tools: list[FunctionTool] = []
    for tool in fields.objects("tools"):
        if tool.required_text("type") != "function":
            raise tool.error("type", "function: this server runs no tools", "unsupported_value")
        tools.append(read_function(tool, tools))
    check_number(fields, tools)
    return tools


def _tool_choice(
    fields: Fields, tools: Sequence[FunctionTool]
) -> tuple[Sequence[FunctionTool], Collection[str]]:
    """Read `tool_choice` as `tools` and `must_call` of a `Chat`."""
    if not isinstance(fields.values.get("tool_choice"), dict):
        return read_tool_choice(fields, tools)
    choice = fields.required_object("tool_choice")
    names = [tool["function"]["name"] for tool in tools]
    if choice.required_choice("type", ("function", "allowed_tools")) == "function":
        return tools, (_named(choice, names),)
    is_forced = choice.choice("mode", ("auto", "required")) == "required"
    allowed = [_named(tool, names) for tool in choice.objects("tools")]
    kept = [tool for tool in tools if tool["function"]["name"] in allowed]
    if is_forced and not kept:
        raise choice.fault("tools", " is empty, but one must be called", "empty_array")
    return kept, allowed if is_forced else ()


def _named(fields: Fields, names: Sequence[str]) -> str:
    name = fields.required_text("name")
    if name not in names:
        raise fields.fault("name", f": there is no tool {name!r:.60}")
    return name


def _text_format(fields: Fields) -> tuple[JSONObject, dict[str, object]]:
    """Read `text.format`; also returns the sampling parameter that enforces it, if any."""
    text = fields.object("text")
    if text is not None and text.text("verbosity") not in (None, "medium"):
        raise text.error("verbosity", "medium", "unsupported_value")
    wanted = None if text is None else text.object("format")
    if wanted is None:
        return {"type": "text"}, {}
    kind = wanted.required_choice("type", ("text", "json_object", "json_schema"))
    form: dict[str, object] = {}
    if kind == "json_object":
        form = {"json_schema": {"type": "object"}}
    elif kind == "json_schema":
        form = {"json_schema": dict(wanted.required_object("schema").values)}
    return dict(wanted.values), form


def _effort(fields: Fields) -> str | None:
    reasoning = fields.object("reasoning")
    if reasoning is None:
        return None
    for name in ("summary", "generate_summary"):
        # There are no summaries: reasoning comes as it is.
        if reasoning.text(name) not in (None, "auto"):
            raise reasoning.error(name, "auto", "unsupported_value")
    return reasoning.choice("effort", EFFORTS)


def _repeated(fields: Fields, chat: Chat) -> dict[str, object]:
    """Build fields of the response that tell how it was asked for."""
    metadata = fields.object("metadata")
    params: SamplingParams = chat.params
    return {
        "background": False,
        "instructions": fields.text("instructions"),
        "metadata": {} if metadata is None else dict(metadata.values),
        "parallel_tool_calls": chat.parallel_tool_calls,
        "temperature": params.temperature,
        "tool_choice": fields.values.get("tool_choice") or "auto",
        "tools": [{"strict": None, **tool.values} for tool in fields.objects("tools")],
        "top_p": params.top_p,
        "truncation": "disabled",
        "user": fields.text("user"),
    }
