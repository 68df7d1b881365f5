"""JSON schemas of calls, built from the schemas of the functions' arguments."""

from collections.abc import Mapping, Sequence

from powerinfer.serve.tool_formats._format import Tool

__all__ = ["call_schema", "with_place"]


def call_schema(tools: Sequence[Tool], arguments_key: str) -> dict[str, object]:
    """Build the schema of `{"name": ..., "arguments": ...}` for at least one tool."""
    definitions = {f"tool{i}": with_place(tool, f"#/$defs/tool{i}") for i, tool in enumerate(tools)}
    calls = [
        {
            "type": "object",
            "properties": {
                "name": {"const": tool.name},
                arguments_key: {"$ref": f"#/$defs/tool{index}"},
            },
            "required": ["name", arguments_key],
            "additionalProperties": False,
        }
        for index, tool in enumerate(tools)
    ]
    return {**(calls[0] if len(calls) == 1 else {"anyOf": calls}), "$defs": definitions}


def with_place(tool: Tool, place: str) -> dict[str, object]:
    """Rewrite the references of a tool's schema for `place`, where another schema will hold it."""
    return _moved_items({"type": "object", **tool.parameters}, place)


def _moved_items(schema: Mapping[str, object], place: str) -> dict[str, object]:
    return {key: _moved(value, place, key) for key, value in schema.items()}


def _moved(value: object, place: str, key: str = "") -> object:
    if isinstance(value, Mapping):
        return _moved_items(value, place)
    if isinstance(value, list):
        return [_moved(item, place) for item in value]
    if key == "$ref" and isinstance(value, str) and value.startswith("#"):
        return place + value[1:]
    return value
