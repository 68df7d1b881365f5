"""Errors in the form of OpenAI's API: a status and an `error` object."""

from collections.abc import Callable, Mapping, Sequence

from starlette.responses import JSONResponse

from powerinfer.errors import (
    ContextLengthError,
    NumericsError,
    PowerInferError,
    PromptError,
    TokenizerError,
    UnsupportedError,
)
from powerinfer.store.memory import format_bytes

__all__ = [
    "ApiError",
    "EndingError",
    "ErrorBody",
    "bad_request",
    "error_body",
    "from_engine",
    "model_failed",
    "model_stays",
    "model_too_large",
    "queue_full",
    "shutting_down",
    "unavailable",
    "unknown_model",
]


class ApiError(Exception):
    """An error of a request, or of the server that should answer it.

    Attributes:
        message: what was got, and what is wanted.
        type: kind of error, as OpenAI names them; by default, who is to blame for the status.
        param: the wrong field of the request, if any.
        code: for programs, if there is one.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        type: str | None = None,  # noqa: A002  as the API calls it
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        is_ours = status >= 500 or status == 429
        self.type = type or ("server_error" if is_ours else "invalid_request_error")
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def response(self, body: "ErrorBody") -> JSONResponse:
        """Build the answer, whose object `body` writes."""
        return JSONResponse(body(self), self.status, headers=self.headers)


ErrorBody = Callable[[ApiError], Mapping[str, object]]
"""Builds the object of an error in an API's form."""


def error_body(error: ApiError) -> dict[str, dict[str, str | None]]:
    """Build the error object of OpenAI's API."""
    return {
        "error": {
            "message": error.message,
            "type": error.type,
            "param": error.param,
            "code": error.code,
        }
    }


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: a field of the request is wrong."""
    return ApiError(message, param=param, code=code)


def queue_full(message: str) -> ApiError:
    """429: the client should retry soon."""
    return ApiError(message, status=429, code="queue_full", headers={"Retry-After": "2"})


def unavailable(message: str, code: str) -> ApiError:
    """503: the client should retry later."""
    return ApiError(message, status=503, code=code, headers={"Retry-After": "5"})


def unknown_model(name: str, served: Sequence[str], param: str | None = None) -> ApiError:
    """404: this server has other models."""
    return ApiError(
        f"there is no model {name[:100]!r}; this server has {', '.join(map(repr, served))}",
        status=404,
        param=param,
        code="model_not_found",
    )


def shutting_down() -> ApiError:
    """503: the server takes no more requests."""
    return unavailable("the server is shutting down", "shutting_down")


def model_stays(name: str) -> ApiError:
    """400: a model cannot be unloaded."""
    return ApiError(
        f"the model {name!r} is the only one of this server and stays loaded; a server that was "
        "started with --keep-alive unloads it",
        code="model_stays",
    )


def model_failed(name: str, error: PowerInferError) -> ApiError:
    """503: a model cannot be loaded; 400: it does not fit.

    Remedies name options of the server, which clients cannot set.
    """
    message = f"the model {name!r} cannot be loaded: {error.message or error}"
    if isinstance(error, PromptError):
        return ApiError(message, code="model_too_large")
    # Another attempt of the client would end alike.
    return ApiError(message, status=503, code="model_failed", headers={"x-should-retry": "false"})


def model_too_large(name: str, needed_bytes: int, most_bytes: int) -> ApiError:
    """400: there is no room for a model, even if all others leave."""
    return ApiError(
        f"the model {name!r} needs {format_bytes(needed_bytes)} of memory for weights, keys and "
        f"values, but only {format_bytes(most_bytes)} can be had: "
        f"{format_bytes(needed_bytes - most_bytes)} are missing",
        code="model_too_large",
    )


class EndingError(PowerInferError):
    """The server shuts down before a request has ended."""


def from_engine(error: PowerInferError, param: str | None = None) -> ApiError:
    """Convert an error of the engine; if the request is wrong, its field `param` is to blame."""
    if isinstance(error, ContextLengthError):
        # Remedies name options of the server, which clients cannot set.
        return bad_request(error.message, param, "context_length_exceeded")
    if isinstance(error, PromptError | UnsupportedError | TokenizerError):
        return bad_request(error.message or str(error), param)
    if isinstance(error, EndingError):
        return ApiError(error.message, status=503, code="shutting_down")
    code = "numerics_error" if isinstance(error, NumericsError) else None
    return ApiError(error.message or str(error), status=500, code=code)
