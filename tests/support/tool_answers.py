"""Answers with calls of tools, as models write them, and what is to be read from them."""

import json
from collections.abc import Mapping, Sequence

__all__ = ["ANSWERS", "written_calls"]

# By form, what stands between calls, and a call with its name and arguments.
_CALLS = {
    "described": ("\n", '{{"name": "{}", "arguments": {}}}'),
    "harmony": (
        "<|call|><|start|>assistant",
        "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>{}",
    ),
    "hermes": ("\n", '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'),
    "llama3": ("; ", '{{"name": "{}", "parameters": {}}}'),
    "mistral": ("", "[TOOL_CALLS]{}[ARGS]{}"),
}


def written_calls(form: str, calls: Sequence[tuple[str, Mapping[str, object]]]) -> str:
    """Calls, each a name and arguments, as models that know the form write them."""
    between, call = _CALLS[form]
    return between.join(
        call.format(name, json.dumps(arguments, ensure_ascii=False)) for name, arguments in calls
    )


HERMES = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
# Form, answer, what is said, name and arguments of the calls.
ANSWERS: dict[str, tuple[str, str, str, list[tuple[str, str]]]] = {
    "text before": ("hermes", f"Let me see.\n\n{HERMES}", "Let me see.", [("clock", "{}")]),
    "text behind": ("hermes", f"{HERMES}\n\nWait.", "Wait.", [("clock", "{}")]),
    "two": ("hermes", f"{HERMES}\n{HERMES}", "", [("clock", "{}")] * 2),
    "no closing mark": ("hermes", HERMES.removesuffix("</tool_call>"), "", [("clock", "{}")]),
    "text instead of the closing mark": (
        "hermes",
        '<tool_call>{"name": "clock", "arguments": {}} Now wait.',
        "Now wait.",
        [("clock", "{}")],
    ),
    "no arguments": ("hermes", '<tool_call>{"name": "clock"}</tool_call>', "", [("clock", "{}")]),
    "arguments first": (
        "hermes",
        '<tool_call>{"arguments": {"a": [1, {}]}, "name": "f"}</tool_call>',
        "",
        [("f", '{"a": [1, {}]}')],
    ),
    "arguments as text": (
        "hermes",
        r'<tool_call>{"name": "f", "arguments": "{\"a\": 1}"}</tool_call>',
        "",
        [("f", '{"a": 1}')],
    ),
    "null": (
        "hermes",
        '<tool_call>{"name": "f", "arguments": null}</tool_call>',
        "",
        [("f", "{}")],
    ),
    "more keys": (
        "hermes",
        '<tool_call>{"id": 7, "name": "f", "arguments": {}, "x": [true]}</tool_call>',
        "",
        [("f", "{}")],
    ),
    "cut off": ("hermes", '<tool_call>{"name": "f", "arguments": {"a', "", [("f", '{"a')]),
    "cut off before the name": ("hermes", '<tool_call>{"na', '<tool_call>{"na', []),
    "no JSON": ("hermes", "<tool_call>f(1)</tool_call>", "<tool_call>f(1)</tool_call>", []),
    "an empty name": (
        "hermes",
        '<tool_call>{"name": ""}</tool_call>',
        '<tool_call>{"name": ""}</tool_call>',
        [],
    ),
    "no JSON behind the name": (
        "hermes",
        '<tool_call>{"name": "f" oh}</tool_call> Well.',
        "Well.",
        [("f", "")],
    ),
    "half a character": (
        "hermes",
        r'<tool_call>{"name": "f\ud800", "arguments": {}}</tool_call>',
        "",
        [("f?", "{}")],
    ),
    "python tag": (
        "llama3",
        '<|python_tag|>{"name": "clock", "parameters": {}}',
        "",
        [("clock", "{}")],
    ),
    "semicolon": (
        "llama3",
        '{"name": "clock", "parameters": {}}; {"name": "weather", "parameters": {"a": 1}}',
        "",
        [("clock", "{}"), ("weather", '{"a": 1}')],
    ),
    "type": (
        "llama3",
        '{"type": "function", "name": "clock", "parameters": {}}',
        "",
        [("clock", "{}")],
    ),
    "another function": (
        "llama3",
        '{"name": "poem", "parameters": {}}',
        '{"name": "poem", "parameters": {}}',
        [],
    ),
    "other JSON": ("llama3", ' {"a": {"name": "clock"}}', ' {"a": {"name": "clock"}}', []),
    "JSON in a text": ("llama3", 'So: {"name": "clock"}', 'So: {"name": "clock"}', []),
    "text behind a call": ("llama3", '{"name": "clock"} Done.', "Done.", [("clock", "{}")]),
    "list": (
        "mistral",
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": "]"}, "id": "x"}, {"name": "g"}]',
        "",
        [("f", '{"a": "]"}'), ("g", "{}")],
    ),
    "text before a list": (
        "mistral",
        'Well. [TOOL_CALLS][{"name": "f", "arguments": {}}]',
        "Well.",
        [("f", "{}")],
    ),
    "object": ("mistral", '[TOOL_CALLS]{"name": "f", "arguments": {}}', "", [("f", "{}")]),
    "name": ("mistral", '[TOOL_CALLS]f[ARGS]{"a": 1}', "", [("f", '{"a": 1}')]),
    "name and id": (
        "mistral",
        '[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"a": 1}[TOOL_CALLS]g{}',
        "",
        [("f", '{"a": 1}'), ("g", "{}")],
    ),
    "name alone": ("mistral", "[TOOL_CALLS]f", "[TOOL_CALLS]f", []),
    "list of numbers": ("mistral", "[TOOL_CALLS][1]", "1]", []),
    "thought, call": (
        "harmony",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.f"
        '<|channel|>commentary json<|message|>{"a": 1}',
        "",
        [("f", '{"a": 1}')],
    ),
    "preamble, call": (
        "harmony",
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>",
        "I look.",
        [("f", "{}")],
    ),
}
