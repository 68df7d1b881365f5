"""The body of `/v1/embeddings` as `/openapi.json` describes it."""

from powerinfer.serve.openai.schemas import PROMPTS, json_body

__all__ = ["EMBEDDINGS_BODY"]

EMBEDDINGS_BODY = json_body(
    {
        "model": {"type": "string"},
        "input": PROMPTS,
        "encoding_format": {"enum": ["float", "base64"]},
        "pooling": {"enum": ["mean", "last"]},
    },
    ["input"],
)
