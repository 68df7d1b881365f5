"""Parts of grammars of calls that are no JSON objects, in llguidance's Lark."""

import json
from collections.abc import Iterator, Mapping, Sequence

from powerinfer.sampling.grammar.compiled import check_form
from powerinfer.sampling.sampling_params import SamplingParams
from powerinfer.serve.tool_formats._format import Tool
from powerinfer.serve.tool_formats._schemas import call_schema, with_place

__all__ = ["call_rules", "check_tools", "forced_arguments", "json_value", "quoted"]


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


def call_rules(
    tool: Tool, rule: str, *, opening: str, equals: str, comma: str, end: str
) -> list[str]:
    """Write the rules of a call whose arguments have values of JSON.

    Args:
        rule: name of the rule of the whole call, and beginning of the other names.
        opening: between the tool's name and the first argument.
        equals: between the name of an argument and its value.
    """
    arguments = list(forced_arguments(tool))
    rules = [f"{rule}: {quoted(tool.name + opening)} {rule}f0"]
    for number, (key, is_required) in enumerate(arguments):
        rules.append(f"{rule}v{number}: {quoted(key + equals)} {json_value(tool, key)}")
        # From this argument on, if it is the first one or not.
        for place, between in (("f", ""), ("n", f'"{comma}"')):
            left_out = "" if is_required else f" | {rule}{place}{number + 1}"
            rest = f"{between} {rule}v{number} {rule}n{number + 1}{left_out}"
            rules.append(f"{rule}{place}{number}: {rest}")
    return [*rules, *(f'{rule}{place}{len(arguments)}: "{end}"' for place in "fn")]


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
