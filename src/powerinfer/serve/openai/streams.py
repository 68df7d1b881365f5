"""Outputs of all prompts of one request."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from powerinfer.engine.request import Output, Request
from powerinfer.errors import ContextLengthError, PromptError
from powerinfer.sampling.finish_reason import FinishReason
from powerinfer.serve.errors import ApiError, from_engine
from powerinfer.serve.running_engine import RequestStream, Unread
from powerinfer.serve.served_model import ModelContext

__all__ = ["Streams", "opened"]


class Streams:
    """Streams of several prompts, read together; `num_tokens` were generated so far."""

    def __init__(self, streams: Sequence[RequestStream], unread: Unread) -> None:
        self.streams = streams
        self.num_tokens = 0
        self._unread = unread

    async def outputs(self) -> AsyncIterator[tuple[int, Output]]:
        """Yield outputs with the number of their prompt until all texts have ended.

        Raises:
            PowerInferError: a text failed.
            ApiError: a text was cancelled, because the server shuts down.
        """
        numbers = {stream: number for number, stream in enumerate(self.streams)}
        num_open = sum(stream.handle.request.params.n for stream in self.streams)
        while num_open:
            stream, output = await self._unread.get()
            if output.error is not None:
                raise output.error
            if output.finish_reason is FinishReason.CANCELLED:
                raise ApiError("the answer was cancelled", status=503)
            self.num_tokens += len(output.token_ids)
            num_open -= output.is_last
            yield numbers[stream], output

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(stream.handle.num_prompt_tokens for stream in self.streams)

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of all prompts whose keys and values were cached."""
        return sum(stream.handle.num_cached_tokens for stream in self.streams)

    def usage(self) -> dict[str, object]:
        """Build OpenAI's object of token counts, of the texts so far."""
        costs = [cost for stream in self.streams for cost in stream.handle.costs]
        drafted = sum(cost.num_drafted for cost in costs)
        accepted = sum(cost.num_accepted for cost in costs)
        usage: dict[str, object] = {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": self.num_tokens,
            "total_tokens": self.num_prompt_tokens + self.num_tokens,
            "prompt_tokens_details": {"cached_tokens": self.num_cached_tokens},
        }
        if drafted:
            usage["completion_tokens_details"] = {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": drafted - accepted,
            }
        return usage


@asynccontextmanager
async def opened(
    context: ModelContext,
    requests: Sequence[Request],
    *,
    prompt_field: str | None = None,
    form_field: str | None = None,
) -> AsyncIterator[Streams]:
    """Submit requests; leaving the context cancels what has not ended.

    Args:
        prompt_field: field of the body with the prompts.
        form_field: field of the body that sets the form of the answers, if there is one.

    Raises:
        ApiError: one of them can never run.
    """
    unread = Unread()
    async with AsyncExitStack() as stack:
        try:
            streams = [
                await stack.enter_async_context(context.engine.open(request, unread))
                for request in requests
            ]
        except ContextLengthError as error:
            raise from_engine(error, prompt_field) from None
        except PromptError as error:
            raise from_engine(error, form_field) from None
        yield Streams(streams, unread)
