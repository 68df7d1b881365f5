"""JSON schemas of calls, built from those of the functions' arguments, and what these allow."""

import json
from collections.abc import Mapping, Sequence
from urllib.parse import unquote

from powerinfer.serve.tool_formats._format import Tool

__all__ = ["argument_choices", "argument_types", "call_schema", "types_of", "with_place"]

_ANY = frozenset(("string", "number", "integer", "boolean", "null", "object", "array"))
_MOST_LEVELS = 32


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


def argument_types(tool: Tool, name: str) -> frozenset[str]:
    """Names of the JSON types that a tool's schema allows for an argument; all if it is silent."""
    return _types(_argument(tool, name), tool.parameters, {}, _MOST_LEVELS)


def argument_choices(tool: Tool, name: str) -> list[str]:
    """Texts that a schema lists for an argument, others as JSON; none if it has no such list."""
    schema = _argument(tool, name)
    if isinstance(schema, Mapping) and isinstance(schema.get("$ref"), str):
        schema = _referenced(schema["$ref"], tool.parameters)
    if not isinstance(schema, Mapping):
        return []
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    choices = listed if isinstance(listed, list) else []
    return [each if isinstance(each, str) else json.dumps(each) for each in choices]


def _argument(tool: Tool, name: str) -> object:
    properties = tool.parameters.get("properties")
    return properties.get(name) if isinstance(properties, Mapping) else None


def types_of(value: object) -> frozenset[str]:
    """Names of the JSON types of a decoded value; a whole number is of two."""
    if isinstance(value, bool):
        return frozenset(("boolean",))
    if isinstance(value, int | float):
        whole = isinstance(value, int) or value.is_integer()
        return frozenset(("number", "integer") if whole else ("number",))
    if value is None or isinstance(value, str):
        return frozenset(("null" if value is None else "string",))
    return frozenset(("object" if isinstance(value, dict) else "array",))


def _types(
    schema: object, root: Mapping[str, object], known: dict[str, frozenset[str]], levels: int
) -> frozenset[str]:
    """Names of the types that a part of a schema allows; `known` are those of references."""
    if not isinstance(schema, Mapping) or not levels:
        return _ANY
    allowed = _ANY
    for key, value in schema.items():
        listed = value if isinstance(value, list) else [value]
        if key == "type" and all(each in _ANY for each in listed if isinstance(each, str)):
            names = {each for each in listed if isinstance(each, str)}
            allowed &= names | ({"integer"} if "number" in names else set())
        elif key in ("const", "enum"):
            allowed &= frozenset().union(*map(types_of, listed if key == "enum" else [value]))
        elif key in ("anyOf", "oneOf", "allOf"):
            parts = [_types(each, root, known, levels - 1) for each in listed]
            join = frozenset.intersection if key == "allOf" else frozenset.union
            allowed &= join(*parts) if parts else _ANY
        elif key == "$ref" and isinstance(value, str):
            if value not in known:
                known[value] = _ANY
                known[value] = _types(_referenced(value, root), root, known, levels - 1)
            allowed &= known[value]
    return allowed or _ANY


def _referenced(reference: str, root: Mapping[str, object]) -> object:
    """Find the part of a schema that `#/a/b` names."""
    found: object = root
    for name in reference.removeprefix("#").split("/")[1:]:
        key = unquote(name).replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, Mapping) else None
    return found
