"""Fields of all of OpenAI's requests: model and streaming."""

from dataclasses import dataclass

from powerinfer.serve.errors import unknown_model
from powerinfer.serve.fields import Fields
from powerinfer.serve.served_model import ModelContext

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


def check_model(fields: Fields, context: ModelContext) -> str:
    """Read the name of the model; the default is the server's.

    Raises:
        ApiError: 404, the server has another model.
    """
    name = fields.text("model")
    if not name or name in context.settings.model_names:
        return name or context.settings.model_name
    raise unknown_model(name, [context.settings.model_name], fields.path("model"))
