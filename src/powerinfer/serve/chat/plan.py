"""From the messages of a chat to what the engine is asked, for all APIs that have chats."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from powerinfer.prompts.long_prompts import encode_prompt
from powerinfer.prompts.messages import message_ids, with_chat_stop
from powerinfer.prompts.reasoning import ends_within
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.serve.chat.deltas import ChatOutputParser
from powerinfer.serve.chat.reasoning import thought_marks
from powerinfer.serve.chat.tool_use import AnswerForm, forced_call, read_tool
from powerinfer.serve.context import ServerContext
from powerinfer.serve.errors import bad_request
from powerinfer.serve.tool_formats import ForcedCall, ToolFormat, find_format, load_format
from powerinfer.store.default_model import story_text

__all__ = ["Chat", "ChatPlan", "plan_chat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """What a client asks, in the terms of OpenAI's API, checked for types.

    Attributes:
        messages: `role` and `content` (a text, or None beside `tool_calls`), perhaps `tool_calls`
            whose arguments are objects, `tool_call_id`, `name`, `reasoning_content`.
        params: of sampling; a grammar of the response format is in them.
        tools: each `{"type": "function", "function": {name, description, parameters}}`.
        tool_choice: `none`, `auto`, `required` or the name of a tool that must be called, as
            `{"type": "function", "function": {"name": ...}}`.
        parallel_tool_calls: an answer may call several tools.
        template_variables: more variables of the chat template (`enable_thinking` ...).
        prefill: the beginning of the answer, which what is generated goes on with.
    """

    messages: Sequence[Mapping[str, object]]
    params: SamplingParams
    tools: Sequence[Mapping[str, object]] = ()
    tool_choice: str | Mapping[str, object] = "auto"
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
    tools = [read_tool(tool) for tool in chat.tools] if chat.tool_choice != "none" else []
    written_as = load_format("harmony") if tokenizer.is_harmony else find_format(template)
    forced = forced_call(written_as, tools, chat.tool_choice, template) if tools else None
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
    told = [
        {"role": str(each["role"]), "content": str(each.get("content") or "")}
        for each in chat.messages
    ]
    return encode_prompt(context.tokenizer, story_text(told), context.model.context_length)


def _chat_ids(context: ServerContext, chat: Chat, written_as: ToolFormat) -> list[int]:
    """The prompt that the model's template writes."""
    variables = dict(chat.template_variables)
    shown = chat.tools if chat.tool_choice != "none" else ()
    if shown and written_as.is_of_template:
        variables["tools"] = list(shown)
    messages = written_as.messages(chat.messages, [read_tool(tool) for tool in shown])
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
