"""`/api/embed` and the older `/api/embeddings`: texts as vectors, as `LLM.embed` computes them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from powerinfer.engine.calls import rows_of, rows_request
from powerinfer.engine.request import PromptRows
from powerinfer.errors import PowerInferError
from powerinfer.prompts.long_prompts import encode_prompt
from powerinfer.prompts.prompts import bos_alone
from powerinfer.scoring.embedding import num_pooled, pooled
from powerinfer.serve.errors import from_engine
from powerinfer.serve.fields import Fields
from powerinfer.serve.ollama.options import check_options
from powerinfer.serve.openai.streams import opened
from powerinfer.serve.responding import Reply
from powerinfer.serve.served_model import ModelContext
from powerinfer.values import FloatArray, JSONObject

__all__ = ["EmbedAnswer", "EmbedRequest", "embedded", "read_embed", "read_embeddings"]

MAX_TEXTS = 2048
_MEAN = "mean"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest:
    """Texts to embed.

    Attributes:
        texts: token ids of each text.
        input_field: field of the body with the texts.
        is_older: the answer is one vector of any length, for `/api/embeddings`.
        loaded_at: when the model was there, in nanoseconds of a monotonic clock.
    """

    texts: Sequence[list[int]]
    input_field: str = "input"
    is_older: bool = False
    loaded_at: int = field(default_factory=time.monotonic_ns)


def read_embed(body: JSONObject, context: ModelContext) -> EmbedRequest:
    """Read a body of `/api/embed`; without a text it only loads the model."""
    loaded_at = time.monotonic_ns()
    fields = Fields(body)
    fields.refuse("dimensions")
    check_options(fields.object("options"), context)
    texts = fields.texts("input") or []
    if fields.values.get("input") == "":
        texts = []
    if len(texts) > MAX_TEXTS:
        raise fields.error("input", f"at most {MAX_TEXTS} texts", "array_above_max_length")
    is_cut = fields.switch("truncate", default=True)
    read = [_token_ids(text, fields.path("input"), context, is_cut=is_cut) for text in texts]
    return EmbedRequest(texts=read, loaded_at=loaded_at)


def read_embeddings(body: JSONObject, context: ModelContext) -> EmbedRequest:
    """Read a body of `/api/embeddings`, which has one text."""
    fields = Fields(body)
    check_options(fields.object("options"), context)
    text = fields.text("prompt")
    texts = [_token_ids(text, "prompt", context, is_cut=True)] if text else []
    return EmbedRequest(texts=texts, input_field="prompt", is_older=True)


def _token_ids(text: str, path: str, context: ModelContext, *, is_cut: bool) -> list[int]:
    """Tokenize a text; one that is too long is cut, as clients expect, or refused."""
    tokenizer, longest = context.tokenizer, context.model.context_length
    try:
        if is_cut:
            token_ids = tokenizer.encode(text, parse_special=True, at_most=longest)[:longest]
        else:
            token_ids = encode_prompt(tokenizer, text, longest)
    except PowerInferError as error:
        raise from_engine(error, path) from None
    if not text or not token_ids or token_ids == bos_alone(tokenizer):
        raise Fields({}).fault(path, " has a text that is empty")
    return token_ids


async def embedded(
    context: ModelContext,
    texts: Sequence[list[int]],
    *,
    pooling: str = _MEAN,
    normalize: bool = True,
    input_field: str | None = None,
) -> list[FloatArray]:
    """Embed texts of at least one token: f32[hidden_size] each, see `LLM.embed`.

    Raises:
        ApiError: a text is longer than the context, or the server shuts down.
        NumericsError: the model produced NaN or infinity.
    """
    bos_id = context.tokenizer.bos_id
    requests = [
        rows_request(ids, PromptRows.STATES, num_pooled(ids, pooling, bos_id)) for ids in texts
    ]
    async with opened(context, requests, prompt_field=input_field) as streams:
        async for _ in streams.outputs():
            pass
        rows = [rows_of(stream.handle, None) for stream in streams.streams]
    return [pooled(each, normalize=normalize) for each in rows]


class EmbedAnswer:
    """The answer to one request; the arguments are those of answers to chats."""

    def __init__(
        self, context: ModelContext, request: EmbedRequest, *, model: str, began_at: int
    ) -> None:
        self._context = context
        self._request = request
        self._model = model
        self._began_at = began_at

    async def __call__(self, reply: Reply) -> None:
        """Compute and send the vectors."""
        asked = self._request
        found = await embedded(
            self._context,
            asked.texts,
            normalize=not asked.is_older,
            input_field=asked.input_field,
        )
        vectors = [vector.tolist() for vector in found]
        if asked.is_older:
            await reply.json({"embedding": vectors[0] if vectors else []})
            return
        await reply.json(
            {
                "model": self._model,
                "embeddings": vectors,
                "total_duration": time.monotonic_ns() - self._began_at,
                "load_duration": asked.loaded_at - self._began_at,
                "prompt_eval_count": sum(map(len, asked.texts)),
            }
        )
