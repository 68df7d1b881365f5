"""Turns a chat of any API into a prompt, sampling parameters and a parser of the answer."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from powerinfer.engine.request import Request
from powerinfer.errors import ContextLengthError, PromptError
from powerinfer.prompts.long_prompts import encode_prompt
from powerinfer.prompts.messages import (
    message_ends,
    message_ids,
    plain_message_ids,
    with_chat_stop,
)
from powerinfer.prompts.reasoning import ends_within
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.serve.chat.deltas import ChatDelta, ChatOutputParser, PlainOutput
from powerinfer.serve.chat.messages import ChatMessage, FunctionTool
from powerinfer.serve.chat.reasoning import ReasoningMarks, ReasoningOutput, reasoning_marks
from powerinfer.serve.errors import bad_request, from_engine
from powerinfer.serve.served_model import ModelContext
from powerinfer.serve.tool_formats import (
    NO_PARAMETERS,
    ForcedCall,
    Tool,
    ToolFormat,
    find_format,
    load_format,
)
from powerinfer.store.default_model import story_text

__all__ = ["Chat", "ChatPlan", "plan_chat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """A chat as a client requests it, with checked types.

    Attributes:
        params: sampling parameters, including the grammar of a response format.
        must_call: names of tools, one of which the answer must call; empty if it need not.
        parallel_tool_calls: the answer may call several tools.
        template_variables: further variables of the chat template (`enable_thinking` ...).
        prefill: beginning of the answer, which the model continues.
        is_plain: contents and `prefill` stay text; names of special tokens in them are not parsed.
    """

    messages: Sequence[ChatMessage]
    params: SamplingParams
    tools: Sequence[FunctionTool] = ()
    must_call: Collection[str] = ()
    parallel_tool_calls: bool = True
    template_variables: Mapping[str, object] = field(default_factory=dict)
    prefill: str = ""
    is_plain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPlan:
    """Everything needed to answer a chat.

    Attributes:
        params: sampling parameters, including stop strings and the form of the answer.
        new_parser: makes the parser of one answer.
        snapshot_positions: ends of messages in the prompt, for models with state.
    """

    prompt_ids: Sequence[int]
    params: SamplingParams
    new_parser: Callable[[], ChatOutputParser]
    snapshot_positions: Sequence[int] = ()

    def request(self, *, shares_answers: bool) -> Request:
        """Make the request; see `Request.shares_answers`."""
        return Request(
            prompt_ids=self.prompt_ids,
            params=self.params,
            shares_answers=shares_answers,
            snapshot_positions=self.snapshot_positions,
        )


def plan_chat(context: ModelContext, chat: Chat) -> ChatPlan:
    """Plan the answer to a chat; slow, so call it with `ModelContext.run_blocking`.

    Raises:
        PromptError: the template refuses the messages, or they are longer than the context.
        ApiError: a tool must be called, but the answer must have another form as well.
    """
    tokenizer = context.model.tokenizer
    template = tokenizer.chat_template or ""
    is_story, is_harmony = context.settings.is_story_model, tokenizer.is_harmony
    tools = [_read_tool(tool) for tool in chat.tools]
    written_as = load_format("harmony") if is_harmony else find_format(template)
    must_call = [tool for tool in tools if tool.name in chat.must_call]
    forced = _forced_call(written_as, must_call, template) if must_call else None
    params = chat.params if is_story else with_chat_stop(tokenizer, chat.params)
    if forced is not None:
        params = _forced(params, forced)
    ends: Sequence[int] = ()
    if is_story:
        prompt_ids = _story_ids(context, chat)
    else:
        prompt_ids, ends = _chat_ids(context, chat, written_as)
    marks = None if is_story else reasoning_marks(template)
    is_open = marks is not None and ends_within(tokenizer, prompt_ids, marks[0])
    prefix = ""
    if params.has_form or chat.prefill:
        prefix = _prefix(marks if is_open else None, forced, is_harmony=is_harmony)
    prompt_ids += _beginning_ids(context, chat, prefix)
    # A story has only the calls that a grammar enforces.
    callable_tools = [] if is_story and forced is None else tools

    def new_parser() -> ChatOutputParser:
        said: ChatOutputParser = PlainOutput()
        if is_harmony or callable_tools:
            said = written_as.new_parser(callable_tools)
        if forced is not None:
            said = _Filtered(said, _is_no_text)
        if marks is not None and not is_harmony:
            ends = written_as.ends_reasoning if callable_tools else ()
            said = ReasoningOutput(said, marks, is_open=is_open, also_ends=ends)
        if not chat.parallel_tool_calls:
            said = _Filtered(said, _is_no_further_call)
        return _Primed(said, prefix) if prefix else said

    return ChatPlan(
        prompt_ids=prompt_ids, params=params, new_parser=new_parser, snapshot_positions=ends
    )


def _read_tool(tool: FunctionTool) -> Tool:
    """Convert a tool of OpenAI's API, whose form was checked."""
    function = tool["function"]
    return Tool(
        function["name"],
        function.get("parameters", NO_PARAMETERS),
        function.get("description", ""),
    )


def _story_ids(context: ModelContext, chat: Chat) -> list[int]:
    """Write the prompt of a model that continues stories."""
    turns = [{"role": each["role"], "content": each["content"] or ""} for each in chat.messages]
    return encode_prompt(
        context.tokenizer,
        story_text(turns),
        context.model.context_length,
        parse_special=not chat.is_plain,
    )


def _chat_ids(
    context: ModelContext, chat: Chat, written_as: ToolFormat
) -> tuple[list[int], Sequence[int]]:
    """Write the prompt with the model's chat template; for a model with state, also find ends."""
    variables = dict(chat.template_variables)
    if chat.tools and written_as.is_of_template:
        variables["tools"] = list(chat.tools)
    messages = written_as.messages(chat.messages, [_read_tool(tool) for tool in chat.tools])
    model, tokenizer = context.model, context.tokenizer
    write_ids = plain_message_ids if chat.is_plain else message_ids
    try:
        prompt_ids = write_ids(tokenizer, messages, model.context_length, **variables)
    except ContextLengthError as error:
        if not chat.tools:
            raise
        # Whoever wrote a short question does not see the tools that a program adds to it.
        told = f"{error.message}; {len(chat.tools)} tools are part of the prompt"
        raise ContextLengthError(told, remedy=error.remedy) from None
    if model.loaded is None or not model.loaded.model.config.state_mixers:
        return prompt_ids, ()
    return prompt_ids, message_ends(tokenizer, prompt_ids, messages, **variables)


def _forced_call(written_as: ToolFormat, tools: Sequence[Tool], template: str) -> ForcedCall:
    try:
        return written_as.forced(tools, template)
    except PromptError as error:
        raise from_engine(error, "tools") from None


def _forced(params: SamplingParams, forced: ForcedCall) -> SamplingParams:
    """Restrict the answer to a tool call."""
    if params.has_form:
        raise bad_request(
            "tool_choice asks for a call and response_format for an answer of another form; "
            "give one of them",
            "tool_choice",
            "invalid_value",
        )
    return replace(params, json_schema=dict(forced.schema) or None, grammar=forced.grammar)


def _prefix(
    open_marks: ReasoningMarks | None, forced: ForcedCall | None, *, is_harmony: bool
) -> str:
    """Text written for the model, so that it goes on with text or a call and not with reasoning."""
    if is_harmony:
        return "<|channel|>final<|message|>" if forced is None else forced.prefix
    closing = f"\n{open_marks[1]}\n\n" if open_marks else ""
    return closing + ("" if forced is None else forced.prefix)


def _beginning_ids(context: ModelContext, chat: Chat, prefix: str) -> list[int]:
    """Encode what was written for the model, and then the beginning of its answer."""
    encode = partial(context.tokenizer.encode, add_bos=False, parse_special=True)
    if chat.is_plain:
        prefix_ids = encode(prefix) if prefix else []
        return prefix_ids + context.tokenizer.encode_inside(chat.prefill)
    return encode(prefix + chat.prefill) if prefix + chat.prefill else []


class _Primed:
    """Parses an answer whose beginning is in the prompt."""

    def __init__(self, reader: ChatOutputParser, prefix: str) -> None:
        self._reader = reader
        self._prefix = prefix

    def push(self, text: str) -> list[ChatDelta]:
        begun, self._prefix = self._prefix, ""
        return self._reader.push(begun + text)

    def finish(self) -> list[ChatDelta]:
        return self.push("") + self._reader.finish()


class _Filtered:
    """Drops some of the pieces that another parser finds."""

    def __init__(self, reader: ChatOutputParser, keeps: Callable[[ChatDelta], bool]) -> None:
        self._reader = reader
        self._keeps = keeps

    def push(self, text: str) -> list[ChatDelta]:
        return list(filter(self._keeps, self._reader.push(text)))

    def finish(self) -> list[ChatDelta]:
        return list(filter(self._keeps, self._reader.finish()))


def _is_no_text(delta: ChatDelta) -> bool:
    """Drop the beginning of a forced call that a limit cut off before its name."""
    return not delta.content


def _is_no_further_call(delta: ChatDelta) -> bool:
    return delta.tool_call is None or delta.tool_call.index == 0
