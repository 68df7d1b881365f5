"""`response_format`: what an answer must look like, as a parameter of sampling."""

from powerinfer.serve.fields import Fields

__all__ = ["read_response_format"]

_TYPES = ("text", "json_object", "json_schema")


def read_response_format(fields: Fields) -> dict[str, object]:
    """The sampling parameter that enforces it; empty for plain text.

    Raises:
        ApiError: it is malformed or of another type.
    """
    wanted = fields.object("response_format")
    if wanted is None:
        return {}
    kind = wanted.required_choice("type", _TYPES)
    if kind == "text":
        return {}
    if kind == "json_object":
        # llama-server takes a schema here, too.
        schema = wanted.object("schema")
        return {"json_schema": {"type": "object"} if schema is None else dict(schema.values)}
    named = wanted.required_object("json_schema")
    return {"json_schema": dict(named.required_object("schema").values)}
