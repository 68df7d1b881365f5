"""The body of `/v1/embeddings`, read and checked."""

from collections.abc import Sequence
from dataclasses import dataclass

from powerinfer.prompts.prompts import bos_alone
from powerinfer.scoring.embedding import POOLINGS
from powerinfer.serve.embeddings.computing import Input
from powerinfer.serve.errors import bad_request
from powerinfer.serve.fields import Fields
from powerinfer.serve.openai.completion_request import read_prompts
from powerinfer.serve.openai.options import check_model
from powerinfer.serve.served_model import ModelContext
from powerinfer.values import JSONObject

__all__ = ["EmbeddingsRequest", "read_request"]


@dataclass(frozen=True, slots=True)
class EmbeddingsRequest:
    """A request to `/v1/embeddings`."""

    model: str
    inputs: Sequence[Input]
    pooling: str
    is_base64: bool


def read_request(body: JSONObject, context: ModelContext) -> EmbeddingsRequest:
    """Read a body and tokenize its texts, which is slow; unknown fields are ignored."""
    fields = Fields(body)
    model = check_model(fields, context)
    fields.refuse(
        "dimensions",
        reason="is not supported: vectors have the size that the model gives them",
        may_be_empty=False,
    )
    is_base64 = fields.choice("encoding_format", ("float", "base64")) == "base64"
    pooling = fields.choice("pooling", POOLINGS) or POOLINGS[0]
    return EmbeddingsRequest(model, _inputs(fields, context), pooling, is_base64)


def _inputs(fields: Fields, context: ModelContext) -> list[Input]:
    prompts = read_prompts(fields, context, "input")
    without_text = bos_alone(context.tokenizer)
    inputs = []
    for index, prompt in enumerate(prompts):
        path = "input" if len(prompts) == 1 else f"input[{index}]"
        if prompt.token_ids == without_text:
            raise bad_request(f"{path} is empty", path, "invalid_value")
        inputs.append(Input(path, prompt.token_ids))
    return inputs
