"""Answers to chats and prompts, whole or as lines of JSON."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import UTC, datetime

from powerinfer.engine.request import Output, Request
from powerinfer.errors import PowerInferError
from powerinfer.sampling.logprobs import TokenLogprob
from powerinfer.serve.chat.deltas import ChatDelta, ChatOutputParser, PlainOutput
from powerinfer.serve.chat.plan import Chat, plan_chat
from powerinfer.serve.errors import from_engine
from powerinfer.serve.ollama.request import OllamaRequest
from powerinfer.serve.openai.logprobs import chat_logprobs
from powerinfer.serve.openai.streams import Streams, opened
from powerinfer.serve.responding import Reply
from powerinfer.serve.served_model import ModelContext
from powerinfer.values import JSONObject

__all__ = ["ChatAnswer", "GenerateAnswer", "timestamp"]


@dataclass(slots=True)
class _Part:
    """A piece of an answer; calls are whole."""

    content: str = ""
    thinking: str = ""
    calls: list[JSONObject] = field(default_factory=list)

    def add(self, other: "_Part") -> None:
        """Append a piece."""
        self.content += other.content
        self.thinking += other.thinking
        self.calls += other.calls


class _Calls:
    """Puts the pieces of tool calls together."""

    def __init__(self) -> None:
        self._id, self._name, self._arguments = "", "", ""
        self._index: int | None = None

    def read(self, delta: ChatDelta) -> _Part:
        """Add a piece of the answer; returns what is complete."""
        piece = delta.tool_call
        if piece is None:
            return _Part(delta.content, delta.reasoning)
        done = _Part()
        if piece.index != self._index:
            done = self.finish()
            self._index, self._id, self._name = piece.index, piece.id or "", piece.name or ""
        self._arguments += piece.arguments
        return done

    def finish(self) -> _Part:
        """Return the last call, if there is one."""
        if self._index is None:
            return _Part()
        named: JSONObject = {
            "index": self._index,
            "name": self._name,
            "arguments": _object(self._arguments),
        }
        self._index, self._arguments = None, ""
        return _Part(calls=[{"id": self._id, "function": named}])


def _object(text: str) -> JSONObject:
    """Parse the arguments of a call; incomplete ones become an empty object."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


class _Text:
    """The text of an answer as it arrives."""

    def __init__(self, parser: ChatOutputParser) -> None:
        self._parser = parser
        self._calls = _Calls()
        self.started_at = time.monotonic_ns()
        self.first_at: int | None = None
        self.done_reason = ""
        self.logprobs: list[TokenLogprob] = []

    def read(self, output: Output) -> list[_Part]:
        """Add an output; returns the pieces that it completes."""
        if output.token_ids and self.first_at is None:
            self.first_at = time.monotonic_ns()
        self.logprobs += output.logprobs
        deltas = self._parser.push(output.text) if output.text else []
        if output.is_last:
            deltas += self._parser.finish()
        parts = [self._calls.read(delta) for delta in deltas]
        if output.finish_reason is not None:
            parts.append(self._calls.finish())
            self.done_reason = output.finish_reason.value
        return [part for part in parts if part != _Part()]

    def take_logprobs(self) -> list[TokenLogprob]:
        """Return the log probabilities that were not taken yet."""
        taken, self.logprobs = self.logprobs, []
        return taken


@dataclass(frozen=True, slots=True)
class _Answer:
    """The answer to one request.

    Attributes:
        context: the model that answers.
        request: what was asked.
        model: name of the model as the client wrote it.
        began_at: when the request arrived, in nanoseconds of a monotonic clock.
    """

    context: ModelContext
    request: OllamaRequest
    _: KW_ONLY
    model: str
    began_at: int

    async def __call__(self, reply: Reply) -> None:
        """Generate and send the answer."""
        if self.request.asked is None:
            await reply.json(self._object(_Part(), done=True, done_reason="load"))
            return
        request, parser = await self._plan(self.request.asked)
        form_field = "format" if request.params.has_form else None
        async with opened(
            self.context, [request], prompt_field=self.request.input_field, form_field=form_field
        ) as streams:
            text = _Text(parser)
            if self.request.is_streamed:
                await self._stream(reply, streams, text)
            else:
                whole = _Part()
                async for _, output in streams.outputs():
                    for part in text.read(output):
                        whole.add(part)
                await reply.json(self._last(whole, streams, text))

    async def _plan(self, asked: Chat | Request) -> tuple[Request, ChatOutputParser]:
        if isinstance(asked, Request):
            return asked, PlainOutput()
        context = self.context
        try:
            plan = await context.run_blocking(plan_chat, context, asked)
        except PowerInferError as error:
            raise from_engine(error, self.request.input_field) from None
        return plan.request(shares_answers=context.settings.reuses_answers), plan.new_parser()

    async def _stream(self, reply: Reply, streams: Streams, text: _Text) -> None:
        async for _, output in streams.outputs():
            for part in text.read(output):
                await reply.line(self._object(part, done=False, **self._logprobs(text)))
        await reply.line(self._last(_Part(), streams, text))
        await reply.end()

    def _last(self, part: _Part, streams: Streams, text: _Text) -> dict[str, object]:
        """Build the object that ends an answer."""
        now = time.monotonic_ns()
        first = now if text.first_at is None else text.first_at
        return self._object(
            part,
            **self._logprobs(text),
            done=True,
            done_reason=text.done_reason,
            total_duration=now - self.began_at,
            load_duration=self.request.loaded_at - self.began_at,
            prompt_eval_count=streams.num_prompt_tokens,
            prompt_eval_duration=first - text.started_at,
            eval_count=streams.num_tokens,
            eval_duration=now - first,
        )

    def _object(self, part: _Part, **others: object) -> dict[str, object]:
        head = {"model": self.model, "created_at": timestamp()}
        return {**head, **self._said(part), **others}

    def _logprobs(self, text: _Text) -> dict[str, object]:
        if not self.request.has_logprobs:
            return {}
        entries: Sequence[TokenLogprob] = text.take_logprobs()
        return {"logprobs": chat_logprobs(self.context.tokenizer, entries)["content"]}

    def _said(self, part: _Part) -> Mapping[str, object]:
        raise NotImplementedError


class ChatAnswer(_Answer):
    """The answer to a request to `/api/chat`."""

    def _said(self, part: _Part) -> Mapping[str, object]:
        message: dict[str, object] = {"role": "assistant", "content": part.content}
        if part.thinking:
            message["thinking"] = part.thinking
        if part.calls:
            message["tool_calls"] = part.calls
        return {"message": message}


class GenerateAnswer(_Answer):
    """The answer to a request to `/api/generate`."""

    def _said(self, part: _Part) -> Mapping[str, object]:
        thinking = {"thinking": part.thinking} if part.thinking else {}
        return {"response": part.content, **thinking}


def timestamp(seconds: float | None = None) -> str:
    """Write seconds since 1970, by default now, as RFC 3339 in UTC."""
    at = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")
