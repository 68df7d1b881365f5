"""`/v1/embeddings`: one vector per text, pooled as `LLM.embed` does."""

import base64
import json
from functools import partial

from powerinfer.serve.embeddings.computing import embed
from powerinfer.serve.embeddings.request import EmbeddingsRequest
from powerinfer.serve.responding import Reply
from powerinfer.serve.served_model import ModelContext
from powerinfer.values import FloatArray

__all__ = ["EmbeddingsAnswer"]


class EmbeddingsAnswer:
    """The answer to one request."""

    def __init__(self, context: ModelContext, asked: EmbeddingsRequest) -> None:
        self._context = context
        self._asked = asked

    async def __call__(self, reply: Reply) -> None:
        """Compute and send all vectors."""
        asked = self._asked
        write = partial(_object, is_base64=asked.is_base64)
        data = await embed(self._context, asked.inputs, write, pooling=asked.pooling)
        num_tokens = sum(len(text.token_ids) for text in asked.inputs)
        usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
        head = json.dumps({"object": "list", "model": asked.model, "usage": usage})
        await reply.encoded(f'{head[:-1]}, "data": [{",".join(data)}]}}'.encode())


def _object(index: int, vector: FloatArray, *, is_base64: bool) -> str:
    """Write a vector as JSON."""
    values = vector.tolist()
    if is_base64:
        values = base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return json.dumps({"object": "embedding", "index": index, "embedding": values})
