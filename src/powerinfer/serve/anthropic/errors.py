"""Errors in the shape of Anthropic's API."""

from powerinfer.serve.errors import ApiError

__all__ = ["error_body"]

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(error: ApiError) -> dict[str, object]:
    """Build the object of an error; its type follows from the status."""
    fallback = "invalid_request_error" if error.status < 500 else "api_error"
    kind = _TYPES.get(error.status, fallback)
    return {"type": "error", "error": {"type": kind, "message": error.message}}
