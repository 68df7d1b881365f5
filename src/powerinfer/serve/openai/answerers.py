"""Answers to chats by an `Answerer`, whole or streamed."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from powerinfer.serve.chat.answerer import Answerer, TokenCounts
from powerinfer.serve.chat.deltas import ChatDelta
from powerinfer.serve.fields import Fields
from powerinfer.serve.openai.chat import new_head
from powerinfer.serve.openai.messages import read_messages
from powerinfer.serve.openai.options import read_streaming
from powerinfer.serve.responding import Reply
from powerinfer.values import JSONObject

__all__ = ["AnswererReply"]


class AnswererReply:
    """The answer to one request, read and checked."""

    def __init__(self, answerer: Answerer, body: JSONObject) -> None:
        """Read a body; fields that only a model could follow are refused or ignored.

        Raises:
            ApiError: it is not valid.
        """
        fields = Fields(body)
        self._messages = read_messages(fields)
        self._streaming = read_streaming(fields)
        reason = "is not possible here: this name stands for several models and tools"
        fields.refuse("tools", "response_format", "audio", reason=reason)
        fields.whole("n", 1, 1)
        self._answerer = answerer
        self._head = new_head("chatcmpl-", str(body["model"]))

    async def __call__(self, reply: Reply) -> None:
        """Send the answer."""
        async with aclosing(self._answerer.answer(self._messages)) as pieces:
            if self._streaming.is_on:
                await self._stream(reply, pieces)
            else:
                await self._whole(reply, pieces)

    async def _whole(
        self, reply: Reply, pieces: AsyncGenerator[ChatDelta | TokenCounts, None]
    ) -> None:
        content = reasoning = ""
        counts = TokenCounts(0, 0)
        async for piece in pieces:
            if isinstance(piece, TokenCounts):
                counts = piece
            else:
                content, reasoning = content + piece.content, reasoning + piece.reasoning
        message: dict[str, object] = {"role": "assistant", "content": content, "refusal": None}
        if reasoning:
            message["reasoning_content"] = reasoning
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        answer = {**self._head, "object": "chat.completion", "choices": [choice]}
        await reply.json({**answer, "usage": _usage(counts)})

    async def _stream(
        self, reply: Reply, pieces: AsyncGenerator[ChatDelta | TokenCounts, None]
    ) -> None:
        await self._chunk(reply, {"role": "assistant", "content": ""})
        counts = TokenCounts(0, 0)
        async for piece in pieces:
            if isinstance(piece, TokenCounts):
                counts = piece
            elif piece.reasoning:
                await self._chunk(reply, {"reasoning_content": piece.reasoning})
            else:
                await self._chunk(reply, {"content": piece.content})
        await self._chunk(reply, {}, "stop")
        if self._streaming.includes_usage:
            await reply.event({**self._chunk_head(), "choices": [], "usage": _usage(counts)})
        await reply.event("[DONE]")
        await reply.end()

    async def _chunk(
        self, reply: Reply, delta: dict[str, str], finish_reason: str | None = None
    ) -> None:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        await reply.event({**self._chunk_head(), "choices": [choice]})

    def _chunk_head(self) -> dict[str, object]:
        return {**self._head, "object": "chat.completion.chunk"}


def _usage(counts: TokenCounts) -> dict[str, object]:
    return {
        "prompt_tokens": counts.prompt,
        "completion_tokens": counts.generated,
        "total_tokens": counts.prompt + counts.generated,
    }
