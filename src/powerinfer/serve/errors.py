"""Errors as clients of the OpenAI API read them: a status and an `error` object, on every path."""

from collections.abc import Callable, Mapping

from starlette.responses import JSONResponse

from powerinfer.errors import (
    ContextLengthError,
    NumericsError,
    PowerInferError,
    PromptError,
    TokenizerError,
    UnsupportedError,
)

__all__ = ["ApiError", "EndingError", "ErrorBody", "bad_request", "error_body", "from_engine"]

_INVALID = "invalid_request_error"


class ApiError(Exception):
    """What is wrong with a request, or with the server that should answer it.

    Attributes:
        message: what was got, what is wanted.
        status: of HTTP.
        type: kind of error, as OpenAI names them.
        param: field of the request that is wrong, None if it is none.
        code: for programs; None if there is none.
        headers: to send with it.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        type: str = _INVALID,  # noqa: A002  as the API calls it
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.type = type
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def response(self, body: "ErrorBody | None" = None) -> JSONResponse:
        """The answer that a client gets; `body` writes it, OpenAI's shape if None."""
        content = (body or error_body)(self)
        return JSONResponse(content, self.status, headers=self.headers)


ErrorBody = Callable[[ApiError], Mapping[str, object]]
"""Writes the object of an error in the shape that an API's clients expect."""


def error_body(error: ApiError) -> dict[str, dict[str, str | None]]:
    """The shape of OpenAI's API."""
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


class EndingError(PowerInferError):
    """The server ends before a request does."""


def from_engine(error: PowerInferError, param: str | None = None) -> ApiError:
    """An error of the engine: a mistake in the request, or one of the server.

    Args:
        error: as the engine raised it.
        param: field of the request that is to blame if the request is.
    """
    if isinstance(error, ContextLengthError):
        # The remedies name options of the server, which its clients cannot set.
        return bad_request(error.message, param, "context_length_exceeded")
    if isinstance(error, PromptError | UnsupportedError | TokenizerError):
        return bad_request(error.message or str(error), param)
    if isinstance(error, EndingError):
        return ApiError(error.message, status=503, type="server_error", code="shutting_down")
    code = "numerics_error" if isinstance(error, NumericsError) else None
    return ApiError(error.message or str(error), status=500, type="server_error", code=code)
