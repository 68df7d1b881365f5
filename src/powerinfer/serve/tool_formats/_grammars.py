"""Parts of grammars of calls that are no JSON objects, in llguidance's Lark."""

import json
from collections.abc import Iterator, Mapping, Sequence

from powerinfer.sampling.grammar.compiled import check_form
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.serve.tool_formats._format import Tool
from powerinfer.serve.tool_formats._schemas import call_schema, with_place

__all__ = ["check_tools", "forced_arguments", "json_value", "quoted"]


def check_tools(tools: Sequence[Tool]) -> None:
    """Raise PromptError if a schema of the tools cannot be enforced."""
    check_form(SamplingParams(json_schema=call_schema(tools, "arguments")))


def forced_arguments(tool: Tool) -> Iterator[tuple[str, bool]]:
    """Yield names of the arguments that a tool's schema names, and whether each is required."""
    properties, required = (tool.parameters.get(key) for key in ("properties", "required"))
    names = list(properties) if isinstance(properties, Mapping) else []
    needed = required if isinstance(required, list) else []
    for name in dict.fromkeys((*names, *needed)):
        yield name, name in needed


def json_value(tool: Tool, name: str) -> str:
    """Write the rule of an argument's value as JSON that its schema allows."""
    whole = with_place(tool, "#/$defs/tool")
    properties = whole.get("properties")
    own = properties.get(name) if isinstance(properties, Mapping) else None
    schema: dict[str, object] = {
        **(own if isinstance(own, Mapping) else {}),
        "x-guidance": {"whitespace_flexible": False},
    }
    if '"$ref"' in json.dumps(own):
        schema["$defs"] = {"tool": whole}
    return f"%json {json.dumps(schema)}"


def quoted(text: str) -> str:
    """Write a text that the grammar prescribes."""
    return json.dumps(text)
