"""`/completion`: continuations of prompts, in llama-server's own form."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from powerinfer.engine.request import Output
from powerinfer.sampling.finish_reason import FinishReason
from powerinfer.sampling.logprobs import TokenLogprob
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.serve.llamacpp.request import NativeRequest
from powerinfer.serve.llamacpp.settings import generation_settings
from powerinfer.serve.openai.streams import Streams, opened
from powerinfer.serve.responding import Reply
from powerinfer.serve.running_engine import RequestStream
from powerinfer.serve.served_model import ModelContext
from powerinfer.tokenizer import Tokenizer

__all__ = ["NativeAnswer"]


@dataclass(slots=True)
class _Text:
    """A text that is generated; its first token arrived at `first_at`."""

    index: int
    stream: RequestStream
    started_at: float = field(default_factory=time.monotonic)
    first_at: float | None = None
    content: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    last: Output | None = None

    def read(self, output: Output) -> None:
        """Add an output."""
        if output.token_ids and self.first_at is None:
            self.first_at = time.monotonic()
        self.content += output.text
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs
        if output.is_last:
            self.last = output

    @property
    def num_prompt(self) -> int:
        """Number of tokens of the prompt."""
        return self.stream.handle.num_prompt_tokens

    def end(self, context_length: int) -> dict[str, object]:
        """Describe why the text ended."""
        reason = None if self.last is None else self.last.finish_reason
        word = None if self.last is None else self.last.stop
        is_full = self.num_prompt + len(self.token_ids) >= context_length
        kind = "limit" if reason is FinishReason.LENGTH else "eos" if word is None else "word"
        return {
            "truncated": kind == "limit" and is_full,
            "stop_type": kind,
            "stopping_word": word or "",
        }

    def timings(self) -> dict[str, object]:
        """Report the times of the prompt and of the text, and drafts if there were any."""
        now = time.monotonic()
        first = now if self.first_at is None else self.first_at
        cached = self.stream.handle.num_cached_tokens
        prompt_n, predicted_n = self.num_prompt - cached, len(self.token_ids)
        cost = self.stream.handle.costs[self.index % self.stream.handle.request.params.n]
        drafts = {"draft_n": cost.num_drafted, "draft_n_accepted": cost.num_accepted}
        return {
            "cache_n": cached,
            **_speed("prompt", prompt_n, first - self.started_at),
            **_speed("predicted", predicted_n, now - first),
            **(drafts if cost.num_drafted else {}),
        }


def _speed(name: str, count: int, seconds: float) -> dict[str, float]:
    return {
        f"{name}_n": count,
        f"{name}_ms": seconds * 1e3,
        f"{name}_per_token_ms": seconds * 1e3 / max(count, 1),
        f"{name}_per_second": count / max(seconds, 1e-9),
    }


class NativeAnswer:
    """The answer to one request."""

    def __init__(self, context: ModelContext, asked: NativeRequest) -> None:
        self._context = context
        self._asked = asked

    async def __call__(self, reply: Reply) -> None:
        """Generate and send the answer."""
        requests = self._asked.requests(self._context)
        async with opened(self._context, requests, prompt_field="prompt") as streams:
            count = self._asked.params.n
            texts = [
                _Text(number * count + index, stream)
                for number, stream in enumerate(streams.streams)
                for index in range(count)
            ]
            if self._asked.is_streamed:
                await self._stream(reply, streams, texts)
            else:
                async for number, output in streams.outputs():
                    texts[number * count + output.index].read(output)
                written = [self._final(text) for text in texts]
                await reply.json(written if self._asked.is_list else written[0])

    async def _stream(self, reply: Reply, streams: Streams, texts: list[_Text]) -> None:
        await reply.start_events()
        async for number, output in streams.outputs():
            text = texts[number * self._asked.params.n + output.index]
            text.read(output)
            if (output.token_ids or output.text) and self._asked.params.max_tokens != 0:
                await reply.event(self._partial(text, output))
            if output.is_last:
                await reply.event(self._final(text))
        await reply.end()

    def _partial(self, text: _Text, output: Output) -> dict[str, object]:
        written = {
            "index": text.index,
            "content": output.text,
            "tokens": list(output.token_ids),
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": len(text.token_ids),
            "tokens_evaluated": text.num_prompt,
        }
        if output.logprobs and self._asked.num_top:
            written["completion_probabilities"] = self._probabilities(output.logprobs)
        return written

    def _final(self, text: _Text) -> dict[str, object]:
        """Describe a finished text; if it was streamed, without its content."""
        asked, context = self._asked, self._context
        is_shown = not asked.is_streamed and asked.params.max_tokens != 0
        prompt_ids = text.stream.handle.request.prompt_ids
        written = {
            "index": text.index,
            "content": text.content if is_shown else "",
            "tokens": text.token_ids if is_shown and asked.returns_tokens else [],
            "id_slot": -1,
            "stop": True,
            "model": context.settings.model_name,
            "tokens_predicted": 0 if asked.params.max_tokens == 0 else len(text.token_ids),
            "tokens_evaluated": text.num_prompt,
            "generation_settings": generation_settings(asked.params),
            "prompt": context.tokenizer.decode(prompt_ids, skip_special=False),
            "has_new_line": "\n" in text.content,
            **text.end(context.model.context_length),
            "tokens_cached": text.num_prompt + len(text.token_ids),
            "timings": text.timings(),
        }
        if asked.num_top and not asked.is_streamed:
            written["completion_probabilities"] = self._probabilities(text.logprobs)
        if asked.with_prompt_probabilities:
            known = text.stream.handle.prompt_logprobs or ()
            written["prompt_probabilities"] = [
                probability(context.tokenizer, entry, asked.num_top) for entry in known
            ]
        return written

    def _probabilities(self, entries: Sequence[TokenLogprob]) -> list[dict[str, object]]:
        tokenizer, asked = self._context.tokenizer, self._asked
        if asked.after_filters:
            return [filtered(tokenizer, each, asked.num_top, asked.params) for each in entries]
        return [probability(tokenizer, each, asked.num_top) for each in entries]


def probability(tokenizer: Tokenizer, entry: TokenLogprob, num_top: int) -> dict[str, object]:
    """Describe a token and its likeliest alternatives, before anything changed their logits."""
    top = [
        {**_token(tokenizer, token_id), "logprob": logprob}
        for token_id, logprob in entry.top[:num_top]
    ]
    return {
        **_token(tokenizer, entry.token_id),
        "logprob": entry.logprob,
        "top_logprobs": top,
    }


def filtered(
    tokenizer: Tokenizer, entry: TokenLogprob, num_top: int, params: SamplingParams
) -> dict[str, object]:
    """Describe the same after top-k, top-p, min-p and temperature, ignoring penalties and biases.

    `entry` lists as many tokens as top-k keeps; `num_top` of them are described.
    """
    chances = _after_filters(entry.top, params)
    top = [
        {**_token(tokenizer, token_id), "prob": chance}
        for token_id, chance in list(chances.items())[:num_top]
    ]
    chosen = chances.get(entry.token_id, 0.0)
    return {**_token(tokenizer, entry.token_id), "prob": chosen, "top_probs": top}


def _after_filters(top: Sequence[tuple[int, float]], params: SamplingParams) -> dict[int, float]:
    """Compute probabilities by token id, likeliest first."""
    kept = top[: params.top_k or len(top)]
    values = np.array([logprob for _, logprob in kept], dtype=np.float64)
    if params.is_greedy:
        return {kept[0][0]: 1.0} if kept else {}
    weights = np.exp(values - values[0])
    sums = np.cumsum(weights)
    count = int(np.searchsorted(sums, params.top_p * sums[-1], side="left")) + 1
    values = values[: min(count, len(values))]
    if params.min_p > 0:
        values = values[values >= values[0] + np.log(params.min_p)]
    weights = np.exp((values - values[0]) / params.temperature)
    chances = weights / weights.sum()
    return {token_id: float(each) for (token_id, _), each in zip(kept, chances, strict=False)}


def _token(tokenizer: Tokenizer, token_id: int) -> dict[str, object]:
    piece = tokenizer.piece_bytes(token_id)
    return {"id": token_id, "token": piece.decode("utf-8", "replace"), "bytes": list(piece)}
