"""Arguments that are no JSON: their types, their literals, and their way through templates."""

import json
import re
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from powerinfer.errors import PromptError
from powerinfer.serve.chat.messages import ChatMessage
from powerinfer.serve.tool_formats import Tool, find_format, load_format
from powerinfer.serve.tool_formats._literals import read_literal, typed_literal, typed_text
from powerinfer.serve.tool_formats._schemas import argument_types
from powerinfer.tokenizer.chat import render_chat
from template_cases import TEMPLATES
from tool_parsing import PLACES, VALUES, cut, read

ANY = {"string", "number", "integer", "boolean", "null", "object", "array"}
NUMBER = {"number", "integer"}
SCHEMAS: dict[str, tuple[Any, set[str]]] = {
    "string": ({"type": "string", "description": "x"}, {"string"}),
    "integer": ({"type": "integer"}, {"integer"}),
    "number": ({"type": "number"}, NUMBER),
    "several": ({"type": ["string", "null"]}, {"string", "null"}),
    "an unknown one": ({"type": "str"}, ANY),
    "no text": ({"type": 1}, ANY),
    "none": ({}, ANY),
    "true": (True, ANY),
    "choices": ({"enum": ["a", 1, None]}, {"string", *NUMBER, "null"}),
    "half a number": ({"const": 1.5}, {"number"}),
    "a pair of choices": ({"const": ["a"]}, {"array"}),
    "any of": ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"string", "null"}),
    "one of nothing": ({"oneOf": []}, ANY),
    "all of": ({"allOf": [{"type": ["object", "array"]}, {"type": "array"}]}, {"array"}),
    "no value at all": ({"type": "string", "const": 1}, ANY),
    "reference": ({"$ref": "#/$defs/a~1b%20c"}, {"string"}),
    "reference to nothing": ({"$ref": "#/$defs/x/y"}, ANY),
    "reference to itself": ({"$ref": "#/$defs/circle"}, {"boolean", *NUMBER, "null"} | ANY),
    "reference elsewhere": ({"$ref": "https://example.org/x"}, ANY),
}
DEFINITIONS = {
    "a/b c": {"type": "string"},
    "circle": {"anyOf": [{"type": "boolean"}, {"$ref": "#/$defs/circle"}]},
    **{f"wide{i}": {"anyOf": [{"$ref": f"#/$defs/wide{i + 1}"}] * 9} for i in range(40)},
}


@pytest.mark.parametrize("case", SCHEMAS)
def test_types_that_a_schema_allows(case: str) -> None:
    schema, types = SCHEMAS[case]
    tool = Tool("f", {"properties": {"x": schema}, "$defs": DEFINITIONS})
    assert argument_types(tool, "x") == types


def test_schemas_that_branch_or_nest_without_end_take_no_time() -> None:
    wide = Tool("f", {"properties": {"x": {"$ref": "#/$defs/wide0"}}, "$defs": DEFINITIONS})
    assert argument_types(wide, "x") == ANY
    deep: Any = {"type": "string"}
    for _ in range(2000):
        deep = {"allOf": [deep]}
    assert argument_types(Tool("f", {"properties": {"x": deep}}), "x") == ANY
    assert argument_types(Tool("f", {"properties": []}), "x") == ANY


LITERALS: dict[str, object] = {
    "1": 1,
    "-5": -5,
    "+5": 5,
    "007": 7,
    ".5": 0.5,
    "1.": 1.0,
    "1e5": 1e5,
    "'a'": "a",
    "'it's fine'": "it's fine",
    r"'a\x41\u00e9\n\d\8\0\/'": "aAé\n\\d\\8\0/",
    r"'\ud83d\ude00\U0001f600'": "😀😀",
    r"'\ud83d\U00ffffff'": "\ufffd\ufffd",
    "'a\nb\\\nc'": "a\nbc",
    " True ": True,
    "[1, 'a', (2,3,), {'x': None, \"y\": true,}]": [1, "a", [2, 3], {"x": None, "y": True}],
    "{}": {},
    "()": [],
}


@pytest.mark.parametrize("text", LITERALS)
def test_literals(text: str) -> None:
    found = read_literal(text)
    assert found is not None
    assert json.loads(found[0]) == found[1] == LITERALS[text]


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "a", "none", "f(1)", "{1: 2}", "[", "'abc", "1_000", "0x1F", "1 2", "NaN"),
        *("Infinity", "[1e999, 'a']", "9" * 5000, "[" * 10**5, "1.5.2", "12a", "'a' b", "\ud800"),
    ],
)
def test_other_texts_are_no_literals(text: str) -> None:
    assert read_literal(text) is None
    assert json.loads(typed_text(text, ANY)) == json.loads(typed_literal(text, ANY)) == text


@given(value=VALUES, spaces=st.sampled_from(["", " ", "\n"]))
def test_values_of_python_and_json_are_read(value: object, spaces: str) -> None:
    for text in (repr(value), json.dumps(value), json.dumps(value, ensure_ascii=False)):
        found = read_literal(f"{spaces}{text}{spaces}")
        assert found is not None
        assert json.loads(found[0]) == found[1] == value


@given(
    text=st.lists(st.sampled_from([*"'\"\\[]{}(),: 1-.eTNx\n", "True", "null"])).map("".join),
    types=st.sets(st.sampled_from(sorted(ANY)), min_size=1),
)
def test_any_text_becomes_json(text: str, types: set[str]) -> None:
    for convert in (typed_text, typed_literal):
        value = json.loads(convert(text, types))
        if types == {"string"}:
            assert isinstance(value, str)
    if types == {"string"}:
        assert json.loads(typed_text(text, types)) == text


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("12", {"string"}, "12"),
        ("null", {"string"}, "null"),
        ("None", {"string", "null"}, None),
        ("12", {"string", "null"}, "12"),
        ("5.0", {"integer"}, 5),
        ("5.5", {"integer"}, "5.5"),
        ('"5"', {"integer"}, 5),
        ("false", {"boolean"}, False),
        ("{'a': True}", {"object"}, {"a": True}),
        (r'"\ud800"', {"integer"}, "?"),
        ('"quoted"', ANY, '"quoted"'),
        ("[1]", ANY, [1]),
        ("Köln [1]", ANY, "Köln [1]"),
    ],
)
def test_texts_by_type(text: str, types: set[str], value: object) -> None:
    assert json.loads(typed_text(text, types)) == value


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("12", {"string"}, "12"),
        ("'12'", {"string"}, "12"),
        ("'12'", {"integer", "number"}, 12),
        ("'[1]'", {"array", "string"}, "[1]"),
        ("Köln", {"integer"}, "Köln"),
        ("True", {"string", "null"}, "True"),
        ("[1]", {"integer"}, [1]),
        ("None", {"string", "null"}, None),
        (r'"\ud800"', {"integer"}, "?"),
    ],
)
def test_literals_by_type(text: str, types: set[str], value: object) -> None:
    assert json.loads(typed_literal(text, types)) == value


INTEGERS = st.integers(-(10**20), 10**20)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
# A value of each type, for an argument of that name.
VALUES_OF = {
    "text": st.text() | st.sampled_from(["", "\n", " a\n\n", "1", "null", "</parameter>", "'\"\\"]),
    "count": INTEGERS,
    "ratio": FLOATS | INTEGERS,
    "flag": st.booleans(),
    "items": st.lists(VALUES, max_size=3),
    "map": st.dictionaries(st.text(), VALUES, max_size=3),
    "maybe": st.none() | st.sampled_from(["a b", "ß", "True"]),
    "anything": VALUES.filter(lambda value: not isinstance(value, str)),
}
TYPES = ("string", "integer", "number", "boolean", "array", "object")
PROPERTIES: dict[str, object] = {
    **{name: {"type": kind} for name, kind in zip(VALUES_OF, TYPES, strict=False)},
    "maybe": {"anyOf": [{"$ref": "#/$defs/text"}, {"type": "null"}]},
}
TYPED = Tool("f", {"properties": PROPERTIES, "$defs": {"text": {"type": "string"}}})
CALLS = st.lists(st.fixed_dictionaries({}, optional=VALUES_OF), min_size=1, max_size=3)
# Texts that templates cannot tell from marks, as they write texts unchanged.
MARKS = re.compile(r"<\||</parameter>\s*</?(parameter|function|tool_call)|</function>|</think>")


@pytest.mark.parametrize("template", ["Qwen3.5-4B", "Qwen3-Coder", "LFM2", "LFM2.5"])
@given(calls=CALLS, places=PLACES)
def test_calls_in_a_template_are_read_again(
    template: str, calls: list[dict[str, Any]], places: list[int]
) -> None:
    assume(MARKS.search(str(calls)) is None)
    form = find_format(TEMPLATES[template])
    listed = [
        {"id": f"call_{i}", "type": "function", "function": {"name": "f", "arguments": arguments}}
        for i, arguments in enumerate(calls)
    ]
    messages: list[Any] = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": None, "tool_calls": listed},
    ]
    text = render_chat(
        TEMPLATES[template],
        form.messages(messages, [TYPED]),
        add_generation_prompt=False,
    )
    _, _, answer = text.rpartition("<|im_start|>assistant\n")
    answer = answer.removeprefix("<think>\n\n</think>\n\n").partition("<|im_end|>")[0]
    found = read(form.new_parser([TYPED]), cut(answer, places))
    assert not found["content"].strip()
    assert [json.loads(arguments) for _, arguments in found["calls"]] == calls


def test_a_text_is_passed_on_as_it_comes() -> None:
    parser = load_format("qwen_xml").new_parser([TYPED])
    pieces = ["<tool_call>\n<function=f>\n<parameter=text>\n", 'a "', "b\n", "c", "\n</para", "x"]
    deltas = [parser.push(piece) for piece in pieces]
    passed = ["".join(d.tool_call.arguments for d in each if d.tool_call) for each in deltas]
    assert passed == ['{"text": "', 'a \\"', "b", "\\nc", "", "\\n</parax"]


@pytest.mark.parametrize("template", ["Qwen3.5-4B", "LFM2.5"])
def test_arguments_that_are_no_object_are_left_out_of_the_prompt(template: str) -> None:
    call: Any = {"id": "x", "type": "function", "function": {"name": "f", "arguments": '{"a": "'}}
    messages: list[ChatMessage] = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "x", "content": "cut off"},
    ]
    form = find_format(TEMPLATES[template])
    text = render_chat(TEMPLATES[template], form.messages(messages, [TYPED]))
    assert "<function=f>\n</function>" in text or "[f()]" in text


@pytest.mark.parametrize("name", ["qwen_xml", "lfm2"])
def test_schemas_that_cannot_be_enforced_are_refused(name: str) -> None:
    tool = Tool("f", {"properties": {"x": {"type": "integer", "multipleOf": 123457}}})
    with pytest.raises(PromptError, match="multiple"):
        load_format(name).forced([tool], "")
