"""`/v1/completions`: continuations of prompts, whole or streamed."""

from dataclasses import dataclass

from powerinfer.engine.request import Output, Request
from powerinfer.serve.openai.chat import new_head
from powerinfer.serve.openai.completion_request import CompletionPrompt, CompletionRequest
from powerinfer.serve.openai.logprobs import CompletionLogprobs
from powerinfer.serve.openai.objects import CompletionChoice
from powerinfer.serve.openai.streams import Streams, opened
from powerinfer.serve.responding import Reply
from powerinfer.serve.running_engine import RequestStream
from powerinfer.serve.served_model import ModelContext

__all__ = ["CompletionAnswer"]


@dataclass(slots=True)
class _Choice:
    """A text that is generated.

    Attributes:
        logprobs: collected log probabilities; None if not requested.
        needs_prompt: the prompt must still be repeated.
    """

    index: int
    logprobs: CompletionLogprobs | None
    needs_prompt: bool
    text: str = ""
    finish_reason: str | None = None

    def read(self, output: Output) -> str:
        """Add an output; returns its text."""
        if self.logprobs is not None:
            for entry in output.logprobs:
                self.logprobs.add(entry.token_id, entry)
        self.text += output.text
        if output.finish_reason is not None:
            self.finish_reason = output.finish_reason.value
        return output.text

    def repeat(self, prompt: CompletionPrompt, stream: RequestStream) -> str:
        """Add the prompt, whose log probabilities are known now; returns its text."""
        self.needs_prompt = False
        if self.logprobs is not None:
            known = list(stream.handle.prompt_logprobs or ())
            # The first token has none.
            missing = len(prompt.token_ids) - len(known)
            entries = [*([None] * missing), *known]
            for token_id, entry in zip(prompt.token_ids, entries, strict=True):
                if entry is not None or not prompt.num_added:
                    self.logprobs.add(token_id, entry)
        self.text += prompt.text
        return prompt.text


class CompletionAnswer:
    """The answer to one request."""

    def __init__(self, context: ModelContext, asked: CompletionRequest) -> None:
        self._context = context
        self._asked = asked
        self._head = {**new_head("cmpl-", asked.model), "object": "text_completion"}

    async def __call__(self, reply: Reply) -> None:
        """Generate and send the answer."""
        asked = self._asked
        wants_prompt = asked.echo and asked.params.logprobs is not None
        requests = [
            Request(
                prompt_ids=prompt.token_ids,
                params=asked.params,
                prompt_logprobs=asked.params.logprobs if wants_prompt else None,
                shares_answers=self._context.settings.reuses_answers,
            )
            for prompt in asked.prompts
        ]
        choices = [self._new_choice(index) for index in range(len(requests) * asked.params.n)]
        form_field = "response_format" if asked.params.has_form else None
        async with opened(
            self._context, requests, prompt_field="prompt", form_field=form_field
        ) as streams:
            if asked.streaming.is_on:
                await self._stream(reply, streams, choices)
            else:
                await self._whole(reply, streams, choices)

    def _new_choice(self, index: int) -> _Choice:
        asked = self._asked
        prompt = asked.prompts[index // asked.params.n]
        logprobs = None
        if asked.params.logprobs is not None:
            before = prompt.token_ids[: prompt.num_added] if asked.echo else prompt.token_ids
            offset = 0 if asked.echo else len(prompt.text)
            logprobs = CompletionLogprobs(self._context.tokenizer, before, offset)
        return _Choice(index, logprobs, needs_prompt=asked.echo)

    def _read(self, streams: Streams, choices: list[_Choice], number: int, output: Output) -> str:
        """Add an output to its choice; returns the added text, including a repeated prompt."""
        choice = choices[number * self._asked.params.n + output.index]
        text = ""
        if choice.needs_prompt:
            text = choice.repeat(self._asked.prompts[number], streams.streams[number])
        return text + choice.read(output)

    async def _whole(self, reply: Reply, streams: Streams, choices: list[_Choice]) -> None:
        async for number, output in streams.outputs():
            self._read(streams, choices, number, output)
        written = [self._written(choice, choice.text, is_whole=True) for choice in choices]
        usage = streams.usage()
        await reply.json({**self._head, "choices": written, "usage": usage})

    async def _stream(self, reply: Reply, streams: Streams, choices: list[_Choice]) -> None:
        await reply.start_events()
        includes_usage = self._asked.streaming.includes_usage
        async for number, output in streams.outputs():
            choice = choices[number * self._asked.params.n + output.index]
            text = self._read(streams, choices, number, output)
            if not text and choice.finish_reason is None:
                continue
            written = self._written(choice, text, is_whole=False)
            chunk: dict[str, object] = {**self._head, "choices": [written]}
            if includes_usage:
                chunk["usage"] = None
            await reply.event(chunk)
        if includes_usage:
            await reply.event({**self._head, "choices": [], "usage": streams.usage()})
        await reply.event("[DONE]")
        await reply.end()

    @staticmethod
    def _written(choice: _Choice, text: str, *, is_whole: bool) -> CompletionChoice:
        logprobs = choice.logprobs
        has_any = logprobs is not None and (is_whole or len(logprobs))
        return {
            "text": text,
            "index": choice.index,
            "logprobs": logprobs.take() if logprobs is not None and has_any else None,
            "finish_reason": choice.finish_reason,
        }
