"""Forms of tool calls: what all of them promise, and the odd answers that models give."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerinfer.errors import UnsupportedError
from powerinfer.serve.chat.messages import ChatMessage
from powerinfer.serve.fields import Fields
from powerinfer.serve.openai.messages import read_messages
from powerinfer.serve.tool_formats import Tool, find_format, format_names, load_format
from powerinfer.tokenizer.chat import render_chat
from powerinfer.values import JSON
from template_cases import SPECIAL, TEMPLATES
from tool_answers import ANSWERS, written_calls
from tool_parsing import PLACES, VALUES, cut, read

WEATHER = Tool(
    "weather",
    {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    "Weather of a place",
)
CLOCK = Tool("clock")
TOOLS = (WEATHER, CLOCK)
NAMES = ("weather", "clock")
SHOWN_BY = {
    "hermes": ("Qwen-Qwen3-0.6B", "ibm-granite-granite-4.0"),
    "llama3": ("meta-llama-Llama-3.1-8B-Instruct",),
    "mistral": ("mistralai-Mistral-Nemo-Instruct-2407", "Mistral-Small-3.2-24B-Instruct-2506"),
    "harmony": ("openai-gpt-oss-120b",),
    "qwen_xml": ("Qwen3.5-4B", "Qwen3-Coder"),
    "lfm2": ("LFM2", "LFM2.5"),
    "gemma4": ("google-gemma-4-31B-it",),
}
# Their arguments are no JSON; `test_typed_arguments` has more.
TYPED = ("qwen_xml", "lfm2", "gemma4")
FORM_OF = {template: name for name, shown in SHOWN_BY.items() for template in shown}


MARKS = ("<", "</tool_call>", "<tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "{", '"')
MORE_MARKS = (
    *("<function=", "weather>", "<function=clock>", "<parameter=", "place>", "</parameter>"),
    *("</function>", "\n", "<|tool_call_start|>", "[", "clock(", "a=", "'", "\\", ",", ")", "]"),
    *("<|tool_call_end|>", "<|tool_call>", "call:", "clock{", "a:", "}", '<|"|>', "<tool_call|>"),
)
ARGUMENTS = st.dictionaries(st.text() | st.sampled_from(MARKS), VALUES, max_size=3)
CALLS = st.lists(
    st.tuples(st.sampled_from(NAMES), ARGUMENTS | st.just({"q": '"}]\\ </tool_call> {'})),
    min_size=1,
    max_size=3,
)


@pytest.mark.parametrize("name", [name for name in format_names() if name not in TYPED])
@given(calls=CALLS, places=PLACES)
def test_what_is_written_is_read_again(
    name: str, calls: list[tuple[str, dict[str, Any]]], places: list[int]
) -> None:
    if name == "harmony":
        # Its marks are tokens of their own, which no text holds.
        calls = [call for call in calls if "<|" not in str(call)]
    text = written_calls(name, calls)
    found = read(load_format(name).new_parser(TOOLS), cut(text, places))
    assert not found["content"].strip()
    assert [(each, json.loads(arguments)) for each, arguments in found["calls"]] == calls


@pytest.mark.parametrize("name", format_names())
@given(
    parts=st.lists(st.sampled_from(MARKS) | st.text(max_size=5) | st.just('{"name": "clock"}')),
    places=PLACES,
)
def test_any_text_cut_anywhere_gives_the_same(
    name: str, parts: list[str], places: list[int]
) -> None:
    check_cut(name, "".join(parts), places)


@pytest.mark.parametrize("name", TYPED)
@given(
    parts=st.lists(st.sampled_from((*MARKS, *MORE_MARKS, "<tool_call>\n<function=clock>\n"))),
    places=PLACES,
)
def test_any_text_with_marks_of_typed_forms_as_well(
    name: str, parts: list[str], places: list[int]
) -> None:
    check_cut(name, "".join(parts), places)


def check_cut(name: str, text: str, places: Sequence[int]) -> None:
    """Compare what is read of a whole text, of its parts and of its characters."""
    whole = read(load_format(name).new_parser(TOOLS), [text])
    assert read(load_format(name).new_parser(TOOLS), cut(text, places)) == whole
    assert read(load_format(name).new_parser(TOOLS), text) == whole


@pytest.mark.parametrize("name", format_names())
@pytest.mark.parametrize("text", ["Hello!", " \n Hello!\n\n", "", "  ", "a < b", "[1] {x}", "1. {"])
def test_text_without_calls_stays_as_it_is(name: str, text: str) -> None:
    found = read(load_format(name).new_parser(TOOLS), text)
    assert found == {"content": text, "reasoning": "", "calls": []}


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_template_shows_the_form_that_is_found(template: str) -> None:
    shown = [name for name in format_names() if load_format(name).is_shown_by(TEMPLATES[template])]
    assert shown == ([FORM_OF[template]] if template in FORM_OF else [])
    expected = FORM_OF.get(template, "described")
    assert find_format(TEMPLATES[template]) is load_format(expected)


def test_models_without_a_template_have_the_tools_described() -> None:
    assert find_format(None) is load_format("described")


def conversation(num_calls: int) -> list[ChatMessage]:
    """A question, calls and results, read from what OpenAI's clients send."""
    calls: list[JSON] = [
        {
            "id": f"call_{i}",
            "type": "function",
            "function": {"name": "weather", "arguments": json.dumps({"place": f"Köln {i}"})},
        }
        for i in range(num_calls)
    ]
    results: list[JSON] = [
        {"role": "tool", "tool_call_id": f"call_{i}", "content": f"sun {i}"}
        for i in range(num_calls)
    ]
    question: JSON = {"role": "user", "content": "Weather?"}
    answer: JSON = {"role": "assistant", "content": None, "tool_calls": calls}
    return read_messages(Fields({"messages": [question, answer, *results]}))


@pytest.mark.parametrize("num_calls", [1, 2])
@pytest.mark.parametrize("template", [*FORM_OF, "google-gemma-2-2b-it", "olmoe"])
def test_the_prompt_of_a_template_is_read_like_an_answer(template: str, num_calls: int) -> None:
    form = find_format(TEMPLATES[template])
    schemas = [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": tool.parameters,
            },
        }
        for tool in TOOLS
    ]
    messages = form.messages(conversation(num_calls), TOOLS)
    text = render_chat(TEMPLATES[template], messages, tools=schemas, **SPECIAL)  # type: ignore[arg-type]
    assert "weather" in text
    for i in range(num_calls):
        written = _ARGUMENTS.get(form_name(template), '{{"place": "Köln {}"}}').format(i)
        assert text.count(written) == 1, "the call is missing"
        assert text.index(written) < text.index(f"sun {i}")
        begin = max(
            text.rfind(mark, 0, text.index(written)) for mark in _BEGINNINGS[form_name(template)]
        )
        found = read(form.new_parser(TOOLS), text[begin : text.index(written) + len(written)])
        assert found["calls"][-1] == ("weather", f'{{"place": "Köln {i}"}}')


_ARGUMENTS = {
    "qwen_xml": "<parameter=place>\nKöln {}\n</parameter>",
    "lfm2": "place='Köln {}')",
    "gemma4": 'place:<|"|>Köln {}<|"|>}}<tool_call|>',
}
_BEGINNINGS = {
    "qwen_xml": ("<tool_call>",),
    "lfm2": ("<|tool_call_start|>",),
    "gemma4": ("<|tool_call>",),
    "hermes": ("<tool_call>",),
    "llama3": ('{"name"',),
    "mistral": ("[TOOL_CALLS]",),
    "harmony": ("<|start|>",),
    "described": ('{"name"',),
}


def form_name(template: str) -> str:
    return FORM_OF.get(template, "described")


@pytest.mark.parametrize("case", ANSWERS)
@given(places=PLACES)
def test_answers_of_models(case: str, places: list[int]) -> None:
    form, text, content, calls = ANSWERS[case]
    found = read(load_format(form).new_parser(TOOLS), cut(text, places))
    assert (found["content"], found["calls"]) == (content, calls)


def test_arguments_are_passed_on_as_they_come() -> None:
    parser = load_format("hermes").new_parser(TOOLS)
    pieces = ['<tool_call>{"name": "f", "arguments": {', '"a', '": 1']
    deltas = [parser.push(piece) for piece in pieces]
    assert [d.tool_call.arguments for d in deltas[1] + deltas[2] if d.tool_call] == ['"a', '": 1']


def test_an_object_that_is_no_call_is_shown_as_it_comes() -> None:
    parser = load_format("llama3").new_parser(TOOLS)
    pieces = ['{"title', '": "A', ' story", "name": "clock"}']
    shown = [[delta.content for delta in parser.push(piece)] for piece in pieces]
    assert shown == [[], ['{"title": "A'], [' story", "name": "clock"}']]


@pytest.mark.parametrize("name", format_names())
@pytest.mark.parametrize("tools", [TOOLS[:1], TOOLS])
def test_what_is_forced_is_read(name: str, tools: tuple[Tool, ...]) -> None:
    """What the schema asks for, written behind the prefix, is a call of a tool."""
    form = load_format(name)
    shown = SHOWN_BY.get(name, ("olmoe",))
    for template in shown:
        forced = form.forced(tools, TEMPLATES[template])
        written = _written(forced.schema) if forced.schema else _FORCED[name]
        found = read(form.new_parser(TOOLS), forced.prefix + written)
        assert [call for call, _ in found["calls"]] == ["weather"]
        assert json.loads(found["calls"][0][1]) == {"place": "x"}


_FORCED = {
    "qwen_xml": "weather>\n<parameter=place>\nx\n</parameter>\n</function>",
    "lfm2": 'weather(place="x")]',
    "gemma4": 'weather{place:"x"}',
}


def _written(schema: Any, root: Any = None) -> str:
    """A text that fits the schemas of calls."""
    root = root or schema
    if "$ref" in schema:
        return _written(root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root)
    if "anyOf" in schema:
        return _written(schema["anyOf"][0], root)
    if "const" in schema:
        return json.dumps(schema["const"])
    if schema["type"] == "array":
        return f"[{_written(schema['items'], root)}]"
    if schema["type"] == "string":
        return '"x"'
    items = schema.get("properties", {}).items()
    return "{" + ",".join(f'"{key}":{_written(value, root)}' for key, value in items) + "}"


def test_references_of_a_schema_are_kept_apart() -> None:
    linked = Tool(
        "a", {"properties": {"x": {"$ref": "#/$defs/y"}}, "$defs": {"y": {"type": "null"}}}
    )
    schema: Any = load_format("hermes").forced([linked, CLOCK], "").schema
    moved = schema["$defs"]["tool0"]
    assert moved["properties"]["x"] == {"$ref": "#/$defs/tool0/$defs/y"}
    assert moved["$defs"]["y"] == {"type": "null"}


def test_ids_of_mistral_have_nine_characters() -> None:
    form = load_format("mistral")
    messages = form.messages(conversation(2), TOOLS)
    ids = [call["id"] for call in messages[1]["tool_calls"]]
    assert ids == [message["tool_call_id"] for message in messages[2:]]
    assert all(len(each) == 9 and each.isalnum() for each in [*ids, form.new_id()])


def test_an_unknown_form() -> None:
    with pytest.raises(UnsupportedError, match="Did you mean 'hermes'"):
        load_format("herms")
