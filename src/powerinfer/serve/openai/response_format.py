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
    wanted.required("type")
    kind = wanted.choice("type", _TYPES)
    if kind == "text":
        return {}
    if kind == "json_object":
        # llama-server takes a schema here, too.
        schema = wanted.object("schema")
        return {"json_schema": {"type": "object"} if schema is None else dict(schema.values)}
    wanted.required("json_schema")
    named = wanted.object("json_schema")
    if named is None:
        return {}
    named.required("schema")
    schema = named.object("schema")
    return {"json_schema": {} if schema is None else dict(schema.values)}
