"""`/api/embed` and the older `/api/embeddings`: texts as vectors, as `LLM.embed` computes them."""

import time
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field

from powerinfer.errors import PowerInferError
from powerinfer.prompts.long_prompts import encode_prompt
from powerinfer.prompts.prompts import bos_alone
from powerinfer.scoring.embedding import POOLINGS
from powerinfer.serve.embeddings.computing import Input, embed
from powerinfer.serve.errors import from_engine
from powerinfer.serve.fields import Fields
from powerinfer.serve.ollama.options import check_options
from powerinfer.serve.responding import Reply
from powerinfer.serve.served_model import ModelContext
from powerinfer.values import JSONObject

__all__ = ["EmbedAnswer", "EmbedRequest", "read_embed", "read_embeddings"]

MAX_TEXTS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedRequest:
    """Texts to embed.

    Attributes:
        texts: what to embed.
        is_older: the answer is one vector of any length, for `/api/embeddings`.
        loaded_at: when the model was there, in nanoseconds of a monotonic clock.
    """

    texts: Sequence[Input]
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
    read = [_read_text(text, fields.path("input"), context, is_cut=is_cut) for text in texts]
    return EmbedRequest(texts=read, loaded_at=loaded_at)


def read_embeddings(body: JSONObject, context: ModelContext) -> EmbedRequest:
    """Read a body of `/api/embeddings`, which has one text."""
    fields = Fields(body)
    check_options(fields.object("options"), context)
    text = fields.text("prompt")
    texts = [_read_text(text, "prompt", context, is_cut=True)] if text else []
    return EmbedRequest(texts=texts, is_older=True)


def _read_text(text: str, path: str, context: ModelContext, *, is_cut: bool) -> Input:
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
    return Input(path, token_ids)


@dataclass(frozen=True, slots=True)
class EmbedAnswer:
    """The answer to one request; the attributes are those of answers to chats."""

    context: ModelContext
    request: EmbedRequest
    _: KW_ONLY
    model: str
    began_at: int

    async def __call__(self, reply: Reply) -> None:
        """Compute and send the vectors."""
        asked = self.request
        vectors = await embed(
            self.context,
            asked.texts,
            lambda _, vector: vector.tolist(),
            pooling=POOLINGS[0],
            normalize=not asked.is_older,
        )
        if asked.is_older:
            await reply.json({"embedding": vectors[0] if vectors else []})
            return
        await reply.json(
            {
                "model": self.model,
                "embeddings": vectors,
                "total_duration": time.monotonic_ns() - self.began_at,
                "load_duration": asked.loaded_at - self.began_at,
                "prompt_eval_count": sum(len(text.token_ids) for text in asked.texts),
            }
        )
