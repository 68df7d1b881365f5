"""Errors of llama-server's own routes, in its form."""

from powerinfer.serve import errors
from powerinfer.serve.errors import ApiError

__all__ = ["error_body"]


def error_body(error: ApiError) -> dict[str, object]:
    """Build OpenAI's error object with the status as code; too long prompts have their own type."""
    body = errors.error_body(error)["error"]
    if error.code == "context_length_exceeded":
        body["type"] = "exceed_context_size_error"
    return {"error": {**body, "code": error.status}}
