"""`/v1/embeddings`: one vector per text, pooled as `LLM.embed` does."""

import asyncio
import base64
import json

from powerinfer.engine.calls import rows_of, rows_request
from powerinfer.engine.request import PromptRows
from powerinfer.scoring.embedding import num_pooled, pooled
from powerinfer.serve.embeddings.request import EmbeddingsRequest, Input
from powerinfer.serve.openai.streams import opened
from powerinfer.serve.responding import Reply
from powerinfer.serve.served_model import ModelContext
from powerinfer.values import FloatArray

__all__ = ["EmbeddingsAnswer"]

# Texts of a request in the engine, as a multiple of `parallel`: enough for full steps, and few, so
# that prompts of other requests need not wait for all of them.
_WINDOW = 2


class EmbeddingsAnswer:
    """The answer to one request."""

    def __init__(self, context: ModelContext, asked: EmbeddingsRequest) -> None:
        self._context = context
        self._asked = asked
        self._places = asyncio.Semaphore(_WINDOW * context.settings.parallel)

    async def __call__(self, reply: Reply) -> None:
        """Compute and send all vectors."""
        asked = self._asked
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._embed(index, text))
                    for index, text in enumerate(asked.inputs)
                ]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        num_tokens = sum(len(text.token_ids) for text in asked.inputs)
        usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
        head = json.dumps({"object": "list", "model": asked.model, "usage": usage})
        data = ",".join(task.result() for task in tasks)
        await reply.encoded(f'{head[:-1]}, "data": [{data}]}}'.encode())

    async def _embed(self, index: int, text: Input) -> str:
        """Compute the vector of a text; returns its object as JSON."""
        context, asked = self._context, self._asked
        count = num_pooled(text.token_ids, asked.pooling, context.tokenizer.bos_id)
        request = rows_request(list(text.token_ids), PromptRows.STATES, count)
        async with self._places, opened(context, [request], prompt_field=text.path) as streams:
            async for _ in streams.outputs():
                pass
            rows = rows_of(streams.streams[0].handle, None)
        return await context.run_blocking(_object, index, rows, is_base64=asked.is_base64)


def _object(index: int, rows: FloatArray, *, is_base64: bool) -> str:
    """Pool f32[num_pooled, hidden_size] states, and write the vector as JSON."""
    vector = pooled(rows, normalize=True)
    values = vector.tolist()
    if is_base64:
        values = base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return json.dumps({"object": "embedding", "index": index, "embedding": values})
