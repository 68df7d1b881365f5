"""From the messages of a chat to what the engine is asked, for all APIs that have chats."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from powerinfer.engine.default_model import story_text
from powerinfer.engine.long_prompts import encode_prompt
from powerinfer.engine.messages import message_ids, with_chat_stop
from powerinfer.engine.sampling_params import SamplingParams
from powerinfer.serve.chat_deltas import ChatOutputParser, PlainOutput
from powerinfer.serve.context import ServerContext

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
    """

    messages: Sequence[Mapping[str, object]]
    params: SamplingParams
    tools: Sequence[Mapping[str, object]] = ()
    tool_choice: str | Mapping[str, object] = "auto"
    parallel_tool_calls: bool = True
    template_variables: Mapping[str, object] = field(default_factory=dict)


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
    """
    tokenizer, context_length = context.model.tokenizer, context.model.context_length
    if context.settings.is_story_model:
        told = [
            {"role": str(each["role"]), "content": str(each.get("content") or "")}
            for each in chat.messages
        ]
        prompt_ids = encode_prompt(tokenizer, story_text(told), context_length)
        return ChatPlan(prompt_ids=prompt_ids, params=chat.params, new_parser=PlainOutput)
    variables = dict(chat.template_variables)
    if chat.tools and chat.tool_choice != "none":
        variables["tools"] = list(chat.tools)
    return ChatPlan(
        prompt_ids=message_ids(tokenizer, chat.messages, context_length, **variables),
        params=with_chat_stop(tokenizer, chat.params),
        new_parser=PlainOutput,
    )
