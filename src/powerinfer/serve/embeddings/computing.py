"""Vectors of texts, computed by the engine beside everything else that the server does."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from powerinfer.engine.calls import rows_of, rows_request
from powerinfer.engine.request import PromptRows
from powerinfer.scoring.embedding import num_pooled, pooled
from powerinfer.serve.openai.streams import opened
from powerinfer.serve.served_model import ModelContext
from powerinfer.values import FloatArray

__all__ = ["Input", "embed"]

# Texts of a request in the engine, as a multiple of `parallel`: enough for full steps, and few, so
# that prompts of other requests need not wait for all of them.
_WINDOW = 2
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Input:
    """A text to embed, of at least one token; `path` is its place in the request."""

    path: str
    token_ids: Sequence[int]


async def embed(
    context: ModelContext,
    inputs: Sequence[Input],
    finish: Callable[[int, FloatArray], T],
    *,
    pooling: str,
    normalize: bool = True,
) -> list[T]:
    """Embed texts, see `LLM.embed`.

    Args:
        finish: makes of a text's number and its vector, f32[hidden_size], what is returned; called
            in a thread of the pool.

    Raises:
        ApiError: a text is longer than the context, or the server shuts down.
        NumericsError: the model produced NaN or infinity.
    """
    places = asyncio.Semaphore(_WINDOW * context.settings.parallel)

    def pool(index: int, rows: FloatArray) -> T:
        return finish(index, pooled(rows, normalize=normalize))

    async def compute(index: int, text: Input) -> T:
        count = num_pooled(text.token_ids, pooling, context.tokenizer.bos_id)
        request = rows_request(list(text.token_ids), PromptRows.STATES, count)
        async with places, opened(context, [request], prompt_field=text.path) as streams:
            async for _ in streams.outputs():
                pass
            rows = rows_of(streams.streams[0].handle, None)
        return await context.run_blocking(pool, index, rows)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(compute(*each)) for each in enumerate(inputs)]
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]
