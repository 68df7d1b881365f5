"""Calls that a grammar enforces: whatever a model would like to write, it writes a call."""

import json

import pytest

from grammar_cases import small_tokenizer, written
from powerinfer.sampling.grammar.compiled import new_matcher
from powerinfer.sampling.grammar.vocabulary import grammar_vocabulary
from powerinfer.sampling.sampling_params import SamplingParams
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


NOTE = Tool(
    "note",
    {
        "properties": {
            "text": {"type": "string"},
            "kind": {"$ref": "#/$defs/kind"},
            "size": {"type": ["integer", "null"], "minimum": 2},
            "tags": {"type": "array", "items": {"$ref": "#/$defs/kind"}},
            "any": True,
        },
        "required": ["kind", "else"],
        "$defs": {"kind": {"enum": ["a", 'b"\n', None]}},
    },
)
KIND = {"qwen_xml": "<parameter=kind>\na\n</parameter>\n", "lfm2": 'kind="a"'}
ELSE = {"qwen_xml": "<parameter=else>\n[1]\n</parameter>\n", "lfm2": "else=[1]"}


def is_allowed(name: str, text: str) -> bool:
    """Whether the grammar of a forced call allows a text as a whole."""
    tokenizer = small_tokenizer("byte level")
    params = SamplingParams(grammar=load_format(name).forced([CLOCK, NOTE], "").grammar)
    matcher = new_matcher(grammar_vocabulary(tokenizer), params)
    assert matcher is not None
    ids = tokenizer.encode_inside(text)
    return (
        matcher.validate_tokens(ids) == len(ids)
        and matcher.consume_tokens(ids)
        and (matcher.is_accepting())
    )


def xml(*values: str) -> str:
    return f"note>\n{''.join(values)}</function>"


@pytest.mark.parametrize(
    ("value", "allowed"),
    [
        ("<parameter=text>\nx</parameter>\n<a>\n\n\n</parameter>\n", True),
        ("<parameter=text>\n\n</parameter>\n", True),
        ("<parameter=text>\n12", False),
        ("<parameter=other>\n12\n</parameter>\n", False),
        ("", True),
    ],
)
def test_texts_in_xml_are_free(value: str, allowed: bool) -> None:
    kind, rest = KIND["qwen_xml"], ELSE["qwen_xml"]
    assert is_allowed("qwen_xml", xml(value, kind, rest)) == allowed
    found = load_format("qwen_xml").new_parser([NOTE])
    deltas = [*found.push("<tool_call><function=" + xml(value, kind)), *found.finish()]
    if allowed:
        text = "".join(delta.tool_call.arguments for delta in deltas if delta.tool_call)
        assert json.loads(text)["kind"] == "a"


@pytest.mark.parametrize(
    ("value", "allowed"),
    [("2", True), ("1", False), ("null", True), ("2.5", False), ("'2'", False), ("None", False)],
)
def test_other_values_follow_their_schemas(value: str, allowed: bool) -> None:
    size = f"<parameter=size>\n{value}\n</parameter>\n"
    assert is_allowed("qwen_xml", xml(KIND["qwen_xml"], size, ELSE["qwen_xml"])) == allowed
    assert is_allowed("lfm2", f"note({KIND['lfm2']}, size={value}, {ELSE['lfm2']})]") == allowed


@pytest.mark.parametrize(
    ("call", "allowed"),
    [
        ("clock()]", True),
        ("clock()", False),
        ("clock(x=1)]", False),
        ("clock(), clock()]", False),
        ('note(kind="a", else=1)]', True),
        ('note(kind=null, any={"a":[]}, else="x")]', True),
        (r'note(kind="b\"\n", tags=["a",null], else=1)]', True),
        ('note(kind="c", else=1)]', False),
        ('note(kind="a")]', False),
        ('note(else=1, kind="a")]', False),
        ('note(, kind="a", else=1)]', False),
        ('note(kind="a" else=1)]', False),
        ('note(text="x", kind="a", size=2, tags=[], any=1, else=1)]', True),
    ],
)
def test_arguments_of_python_may_be_left_out_or_must_be_there(call: str, allowed: bool) -> None:
    assert is_allowed("lfm2", call) == allowed
