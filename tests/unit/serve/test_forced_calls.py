"""Calls that a grammar enforces: whatever a model would like to write, it writes a call."""

import json

import pytest

from grammar_cases import small_tokenizer, written
from powerinfer.serve.chat.deltas import ToolCallDelta
from powerinfer.serve.tool_formats import Tool, format_names, load_format
from template_cases import TEMPLATES

CITY = {"enum": ["Köln", "Paris"]}
WEATHER = Tool(
    "weather",
    {
        "type": "object",
        "properties": {
            "place": {"$ref": "#/$defs/city"},
            "days": {"type": "integer", "maximum": 9},
        },
        "required": ["place"],
        "additionalProperties": False,
        "$defs": {"city": CITY},
    },
)
CLOCK = Tool("clock", {"properties": {}, "additionalProperties": False})
# The same name for another definition: references must not get mixed up.
POEM = Tool(
    "poem",
    {
        "properties": {"about": {"$ref": "#/definitions/city"}},
        "required": ["about"],
        "additionalProperties": False,
        "definitions": {"city": {"const": "Rome"}},
    },
)
# Templates of a form that begin a call in different ways.
TEMPLATES_OF = {
    "mistral": ("Mistral-Small-3.2-24B-Instruct-2506", "mistralai-Mistral-Nemo-Instruct-2407")
}


def check(name: str, arguments: object) -> None:
    assert isinstance(arguments, dict)
    if name == "clock":
        assert arguments == {}
    elif name == "poem":
        assert arguments == {"about": "Rome"}
    else:
        assert name == "weather"
        assert arguments["place"] in CITY["enum"]


@pytest.mark.parametrize("tools", [(WEATHER,), (CLOCK,), (WEATHER, CLOCK, POEM)])
@pytest.mark.parametrize("name", format_names())
def test_random_logits_write_a_call(name: str, tools: tuple[Tool, ...]) -> None:
    form, tokenizer = load_format(name), small_tokenizer("byte level")
    called = set()
    for template in TEMPLATES_OF.get(name, ("olmoe",)):
        forced = form.forced(tools, TEMPLATES[template])
        for seed in range(12):
            schema = dict(forced.schema) or None
            text = written(tokenizer, seed, json_schema=schema, grammar=forced.grammar)
            assert text is not None
            parser = form.new_parser(tools)
            deltas = [*parser.push(forced.prefix), *parser.push(text), *parser.finish()]
            parts = [delta.tool_call for delta in deltas]
            assert all(isinstance(part, ToolCallDelta) and part.index == 0 for part in parts)
            names = [part.name for part in parts if part is not None and part.name is not None]
            assert len(names) == 1
            check(names[0], json.loads("".join(part.arguments for part in parts if part)))
            called.add(names[0])
    assert called <= {tool.name for tool in tools}
    assert len(called) > 1 or len(tools) == 1
