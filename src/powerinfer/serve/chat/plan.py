"""From the messages of a chat to what the engine is asked, for all APIs that have chats."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from powerinfer.prompts.long_prompts import encode_prompt
from powerinfer.prompts.messages import message_ids, with_chat_stop
from powerinfer.prompts.reasoning import ends_within
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.serve.chat.deltas import ChatOutputParser
from powerinfer.serve.chat.messages import ChatMessage, FunctionTool
from powerinfer.serve.chat.reasoning import thought_marks
from powerinfer.serve.chat.tool_use import AnswerForm, read_tool
from powerinfer.serve.context import ServerContext
from powerinfer.serve.errors import bad_request
from powerinfer.serve.tool_formats import ForcedCall, ToolFormat, find_format, load_format
from powerinfer.store.default_model import story_text

__all__ = ["Chat", "ChatPlan", "plan_chat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """What a client asks, in the terms of OpenAI's API, checked for types.

    Attributes:
        messages: the oldest first.
        params: sampling parameters; a grammar of the response format is in them.
        tools: that the answer may call.
        must_call: names of tools, one of which the answer must call; empty if it need not.
        parallel_tool_calls: an answer may call several tools.
        template_variables: more variables of the chat template (`enable_thinking` ...).
        prefill: the beginning of the answer, which what is generated goes on with.
    """

    messages: Sequence[ChatMessage]
    params: SamplingParams
    tools: Sequence[FunctionTool] = ()
    must_call: Collection[str] = ()
    parallel_tool_calls: bool = True
    template_variables: Mapping[str, object] = field(default_factory=dict)
    prefill: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPlan:
    """How a chat is answered.

    Attributes:
        prompt_ids: that the model goes on with.
        params: of sampling, with what ends an answer and what it must look like.
        new_parser: makes the reader of one answer.
    """

    prompt_ids: Sequence[int]
    params: SamplingParams
    new_parser: Callable[[], ChatOutputParser]


def plan_chat(context: ServerContext, chat: Chat) -> ChatPlan:
    """Write the prompt of a chat; takes long, so call it with `ServerContext.run_blocking`.

    Raises:
        PromptError: the template refuses the messages, or they are longer than the context.
        ApiError: a tool must be called, and the answer must have another form as well.
    """
    tokenizer = context.model.tokenizer
    template = tokenizer.chat_template or ""
    is_story = context.settings.is_story_model
    tools = [read_tool(tool) for tool in chat.tools]
    written_as = load_format("harmony") if tokenizer.is_harmony else find_format(template)
    must_call = [tool for tool in tools if tool.name in chat.must_call]
    forced = written_as.forced(must_call, template) if must_call else None
    params = chat.params if is_story else with_chat_stop(tokenizer, chat.params)
    if forced is not None:
        params = _forced(params, forced)
    prompt_ids = _story_ids(context, chat) if is_story else _chat_ids(context, chat, written_as)
    marks = None if is_story else thought_marks(template)
    form = AnswerForm(
        tool_format=written_as,
        is_harmony=tokenizer.is_harmony,
        # A story has no calls but those that its grammar makes.
        tools=() if is_story and forced is None else tools,
        only_one=not chat.parallel_tool_calls,
        is_forced=forced is not None,
        marks=marks,
        are_thoughts_open=marks is not None and ends_within(tokenizer, prompt_ids, marks[0]),
    )
    if params.has_form or chat.prefill:
        form = replace(form, prefix=_prefix(form, forced))
    if begun := form.prefix + chat.prefill:
        prompt_ids += tokenizer.encode(begun, add_bos=False, parse_special=True)
    return ChatPlan(prompt_ids=prompt_ids, params=params, new_parser=form.new_parser)


def _story_ids(context: ServerContext, chat: Chat) -> list[int]:
    """The prompt of a model that goes on with stories."""
    told = [{"role": each["role"], "content": each["content"] or ""} for each in chat.messages]
    return encode_prompt(context.tokenizer, story_text(told), context.model.context_length)


def _chat_ids(context: ServerContext, chat: Chat, written_as: ToolFormat) -> list[int]:
    """The prompt that the model's template writes."""
    variables = dict(chat.template_variables)
    if chat.tools and written_as.is_of_template:
        variables["tools"] = list(chat.tools)
    messages = written_as.messages(chat.messages, [read_tool(tool) for tool in chat.tools])
    return message_ids(context.tokenizer, messages, context.model.context_length, **variables)


def _forced(params: SamplingParams, forced: ForcedCall) -> SamplingParams:
    """Sampling parameters of an answer that is nothing but a call."""
    if params.has_form:
        raise bad_request(
            "tool_choice asks for a call and response_format for an answer of another form; "
            "give one of them",
            "tool_choice",
            "invalid_value",
        )
    return replace(params, json_schema=dict(forced.schema))


def _prefix(form: AnswerForm, forced: ForcedCall | None) -> str:
    """What is written for the model, so that what it writes is said or called, and not thought."""
    if form.is_harmony:
        return "<|channel|>final<|message|>" if forced is None else forced.prefix
    closing = f"\n{form.marks[1]}\n\n" if form.marks and form.are_thoughts_open else ""
    return closing + ("" if forced is None else forced.prefix)
