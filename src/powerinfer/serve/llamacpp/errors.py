"""Errors of the routes that llama-server alone has, in its shape."""

from powerinfer.serve import errors
from powerinfer.serve.errors import ApiError

__all__ = ["error_body"]


def error_body(error: ApiError) -> dict[str, object]:
    """OpenAI's object with the status in it; a prompt that is too long has a type of its own."""
    body = errors.error_body(error)["error"]
    if error.code == "context_length_exceeded":
        body["type"] = "exceed_context_size_error"
    return {"error": {**body, "code": error.status}}
