"""Fields of all of OpenAI's requests: model and streaming."""

from dataclasses import dataclass

from powerinfer.serve.context import ServerContext
from powerinfer.serve.errors import ApiError
from powerinfer.serve.fields import Fields

__all__ = ["Streaming", "check_model", "read_streaming"]


@dataclass(frozen=True, slots=True)
class Streaming:
    """The form in which an answer is sent, perhaps with a last event about token usage."""

    is_on: bool
    includes_usage: bool


def read_streaming(fields: Fields) -> Streaming:
    """Read `stream`, and `stream_options`, which need it."""
    is_on = fields.switch("stream")
    options = fields.object("stream_options")
    if options is None:
        return Streaming(is_on, includes_usage=False)
    if not is_on:
        raise fields.fault("stream_options", " needs stream to be true")
    return Streaming(is_on, includes_usage=options.switch("include_usage"))


def check_model(fields: Fields, context: ServerContext) -> str:
    """Read the name of the model; the default is the server's.

    Raises:
        ApiError: 404, the server has another model.
    """
    name = fields.text("model")
    if not name or name in context.settings.model_names:
        return name or context.settings.model_name
    raise unknown_model(name, context, fields.path("model"))


def unknown_model(name: str, context: ServerContext, param: str | None = None) -> ApiError:
    """404: this server has another model."""
    return ApiError(
        f"there is no model {name[:100]!r}; this server has {context.settings.model_name!r}",
        status=404,
        param=param,
        code="model_not_found",
    )
