"""The bodies of `/api/chat` and `/api/generate`, read and checked."""

import time
from dataclasses import dataclass, field

from powerinfer.engine.request import Request
from powerinfer.errors import PowerInferError
from powerinfer.prompts.long_prompts import encode_prompt
from powerinfer.prompts.prompts import bos_alone
from powerinfer.serve.chat.messages import ChatMessage
from powerinfer.serve.chat.plan import Chat
from powerinfer.serve.errors import from_engine
from powerinfer.serve.fields import Fields
from powerinfer.serve.ollama.messages import read_messages, refuse_images
from powerinfer.serve.ollama.options import read_sampling, read_think
from powerinfer.serve.openai.chat_request import read_tools
from powerinfer.serve.served_model import ModelContext
from powerinfer.values import JSONObject

__all__ = ["OllamaRequest", "read_chat", "read_generate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OllamaRequest:
    """A request that a text answers.

    Attributes:
        asked: the chat, or the prompt as it stands; None only loads the model.
        input_field: field of the body with the prompt.
        loaded_at: when the model was there, in nanoseconds of a monotonic clock.
    """

    asked: Chat | Request | None
    input_field: str
    is_streamed: bool = True
    loaded_at: int = field(default_factory=time.monotonic_ns)

    @property
    def has_logprobs(self) -> bool:
        """Log probabilities are wanted."""
        return self.asked is not None and self.asked.params.logprobs is not None


def read_chat(body: JSONObject, context: ModelContext) -> OllamaRequest:
    """Read a body of `/api/chat`; unknown fields are ignored."""
    loaded_at = time.monotonic_ns()
    fields = Fields(body)
    messages = read_messages(fields)
    chat = Chat(
        messages=messages,
        params=read_sampling(fields, context),
        tools=read_tools(fields),
        template_variables=read_think(fields, context),
    )
    return OllamaRequest(
        asked=chat if messages else None,
        input_field="messages",
        is_streamed=fields.switch("stream", default=True),
        loaded_at=loaded_at,
    )


def read_generate(body: JSONObject, context: ModelContext) -> OllamaRequest:
    """Read a body of `/api/generate`; unknown fields are ignored."""
    loaded_at = time.monotonic_ns()
    fields = Fields(body)
    refuse_images(fields)
    fields.refuse("suffix")
    fields.refuse("template", reason="is not supported: the template of the model is used")
    fields.refuse("context", reason="is not supported: send earlier turns to /api/chat")
    fields.refuse("width", "height", "steps", reason="is not supported: this model writes text")
    prompt = fields.text("prompt") or ""
    asked = (
        _raw(fields, context, prompt) if fields.switch("raw") else _turn(fields, context, prompt)
    )
    return OllamaRequest(
        asked=asked if prompt else None,
        input_field="prompt",
        is_streamed=fields.switch("stream", default=True),
        loaded_at=loaded_at,
    )


def _turn(fields: Fields, context: ModelContext, prompt: str) -> Chat:
    """Read a prompt that the chat template wraps."""
    system = fields.text("system")
    messages: list[ChatMessage] = [{"role": "system", "content": system}] if system else []
    return Chat(
        messages=[*messages, {"role": "user", "content": prompt}],
        params=read_sampling(fields, context),
        template_variables=read_think(fields, context),
    )


def _raw(fields: Fields, context: ModelContext, prompt: str) -> Request:
    """Read a prompt that is completed as it stands."""
    fields.refuse("system", "think", reason="is of no use with raw: the prompt is used as it is")
    params = read_sampling(fields, context)
    tokenizer = context.tokenizer
    try:
        token_ids = encode_prompt(tokenizer, prompt, context.model.context_length)
    except PowerInferError as error:
        raise from_engine(error, "prompt") from None
    return Request(
        prompt_ids=token_ids or bos_alone(tokenizer),
        params=params,
        shares_answers=context.settings.reuses_answers,
    )
