"""`response_format` as a sampling parameter."""

from powerinfer.serve.fields import Fields

__all__ = ["read_response_format"]

_TYPES = ("text", "json_object", "json_schema")


def read_response_format(fields: Fields) -> dict[str, object]:
    """Read the sampling parameter that enforces the format; empty for plain text.

    Raises:
        ApiError: it is malformed or of an unknown type.
    """
    wanted = fields.object("response_format")
    if wanted is None:
        return {}
    kind = wanted.required_choice("type", _TYPES)
    if kind == "text":
        return {}
    if kind == "json_object":
        # llama-server also takes a schema here.
        schema = wanted.object("schema")
        return {"json_schema": {"type": "object"} if schema is None else dict(schema.values)}
    named = wanted.required_object("json_schema")
    return {"json_schema": dict(named.required_object("schema").values)}
