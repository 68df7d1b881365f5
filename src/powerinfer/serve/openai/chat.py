"""`/v1/chat/completions`: answers to chats, whole or streamed."""

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from powerinfer.engine.request import Output
from powerinfer.errors import PromptError
from powerinfer.sampling.finish_reason import FinishReason
from powerinfer.sampling.logprobs import TokenLogprob
from powerinfer.serve.chat.deltas import ChatDelta, ChatOutputParser, ToolCallDelta
from powerinfer.serve.chat.plan import ChatPlan, plan_chat
from powerinfer.serve.errors import from_engine
from powerinfer.serve.openai.chat_request import ChatRequest
from powerinfer.serve.openai.logprobs import chat_logprobs
from powerinfer.serve.openai.objects import ChatChoice, ChatLogprobs, ChunkChoice, Head
from powerinfer.serve.openai.streams import Streams, opened
from powerinfer.serve.responding import Reply
from powerinfer.serve.served_model import ModelContext

__all__ = ["ChatAnswer"]


@dataclass(slots=True)
class _Choice:
    """One of the `n` answers; `logprobs` are those of tokens that were not sent yet."""

    index: int
    parser: ChatOutputParser
    logprobs: list[TokenLogprob] = field(default_factory=list)
    content: str = ""
    reasoning: str = ""
    calls: list[ToolCallDelta] = field(default_factory=list)
    finish_reason: str | None = None

    def read(self, output: Output) -> list[ChatDelta]:
        """Add an output; returns the pieces that it adds."""
        self.logprobs += output.logprobs
        deltas = self.parser.push(output.text) if output.text else []
        if output.is_last:
            deltas += self.parser.finish()
        for delta in deltas:
            self._keep(delta)
        if output.finish_reason is not None:
            is_call = self.calls and output.finish_reason is FinishReason.STOP
            self.finish_reason = "tool_calls" if is_call else output.finish_reason.value
        return deltas

    def _keep(self, delta: ChatDelta) -> None:
        self.content += delta.content
        self.reasoning += delta.reasoning
        call = delta.tool_call
        if call is not None and call.index == len(self.calls):
            self.calls.append(call)
        elif call is not None:
            begun = self.calls[call.index]
            self.calls[call.index] = replace(begun, arguments=begun.arguments + call.arguments)

    def message(self) -> dict[str, object]:
        """Build the message of the whole answer."""
        # Calls have no content, unless the model wrote text as well.
        content = None if self.calls and not self.content else self.content
        message: dict[str, object] = {"role": "assistant", "content": content, "refusal": None}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": _function(call)}
                for call in self.calls
            ]
        return message


class ChatAnswer:
    """The answer to one request."""

    def __init__(self, context: ModelContext, request: ChatRequest) -> None:
        self._context = context
        self._request = request
        self._head = new_head("chatcmpl-", request.model)

    async def __call__(self, reply: Reply) -> None:
        """Generate and send the answer."""
        context, asked = self._context, self._request
        try:
            plan: ChatPlan = await context.run_blocking(plan_chat, context, asked.chat)
        except PromptError as error:
            raise from_engine(error, "messages") from None
        request = plan.request(shares_answers=context.settings.reuses_answers)
        choices = [_Choice(index, plan.new_parser()) for index in range(plan.params.n)]
        form_field = "response_format" if asked.chat.params.has_form else None
        async with opened(
            context, [request], prompt_field="messages", form_field=form_field
        ) as streams:
            if asked.streaming.is_on:
                await self._stream(reply, streams, choices)
            else:
                await self._whole(reply, streams, choices)

    async def _whole(self, reply: Reply, streams: Streams, choices: list[_Choice]) -> None:
        async for _, output in streams.outputs():
            choices[output.index].read(output)
        written: list[ChatChoice] = [
            {
                "index": choice.index,
                "message": choice.message(),
                "logprobs": self._logprobs(choice),
                "finish_reason": choice.finish_reason,
            }
            for choice in choices
        ]
        await reply.json(
            {
                **self._head,
                "object": "chat.completion",
                "choices": written,
                "usage": streams.usage(),
            }
        )

    async def _stream(self, reply: Reply, streams: Streams, choices: list[_Choice]) -> None:
        await reply.start_events()
        for choice in choices:
            await self._chunk(reply, choice, {"role": "assistant", "content": ""})
        async for _, output in streams.outputs():
            choice = choices[output.index]
            for delta in choice.read(output):
                await self._chunk(reply, choice, _delta(delta), with_logprobs=True)
            if choice.finish_reason is not None:
                reason = choice.finish_reason
                await self._chunk(reply, choice, {}, with_logprobs=True, finish_reason=reason)
        if self._request.streaming.includes_usage:
            usage = streams.usage()
            await reply.event({**self._chunk_head(), "choices": [], "usage": usage})
        await reply.event("[DONE]")
        await reply.end()

    async def _chunk(
        self,
        reply: Reply,
        choice: _Choice,
        delta: Mapping[str, object],
        *,
        with_logprobs: bool = False,
        finish_reason: str | None = None,
    ) -> None:
        written: ChunkChoice = {
            "index": choice.index,
            "delta": delta,
            "logprobs": self._logprobs(choice) if with_logprobs and choice.logprobs else None,
            "finish_reason": finish_reason,
        }
        chunk: dict[str, object] = {**self._chunk_head(), "choices": [written]}
        if self._request.streaming.includes_usage:
            chunk["usage"] = None
        await reply.event(chunk)

    def _chunk_head(self) -> dict[str, object]:
        return {**self._head, "object": "chat.completion.chunk"}

    def _logprobs(self, choice: _Choice) -> ChatLogprobs | None:
        """Take the log probabilities that were not sent yet."""
        if self._request.chat.params.logprobs is None:
            return None
        entries, choice.logprobs = choice.logprobs, []
        return chat_logprobs(self._context.tokenizer, entries)


def new_head(prefix: str, model: str) -> Head:
    """Make the head of an answer, with a new id."""
    return {
        "id": prefix + secrets.token_hex(12),
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": None,
    }


def _delta(delta: ChatDelta) -> dict[str, object]:
    if delta.tool_call is not None:
        return {"tool_calls": [_call(delta.tool_call)]}
    if delta.reasoning:
        return {"reasoning_content": delta.reasoning}
    return {"content": delta.content}


def _call(call: ToolCallDelta) -> dict[str, object]:
    if call.id is None:
        return {"index": call.index, "function": _function(call)}
    return {"index": call.index, "id": call.id, "type": "function", "function": _function(call)}


def _function(call: ToolCallDelta) -> dict[str, str]:
    named = {} if call.name is None else {"name": call.name}
    return named | {"arguments": call.arguments}
