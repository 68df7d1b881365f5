"""What fuzzing answers with tool calls runs: cut anywhere, they are read as when they come whole.

A file begins with the name of the form on a line of its own.
"""

import json
from pathlib import Path

from powerinfer.serve.tool_formats import Tool, format_names, load_format
from tool_answers import ANSWERS
from tool_parsing import cut, read

__all__ = ["check", "read_everything", "seeds"]

_KINDS = ("string", "integer", "number", "boolean", "array", "object", "null")
_PROPERTIES = {kind: {"type": kind} for kind in _KINDS} | {"place": {"type": "string"}}
_TOOLS = (Tool("weather", {"properties": _PROPERTIES}), Tool("clock"), Tool("f"))


def seeds() -> list[bytes]:
    """Answers of models, of all forms, and values where a schema wants another type."""
    typed = [
        *(
            f"qwen_xml\n{_xml(kind, value)}"
            for kind in _KINDS
            for value in (r'"\ud800"', "null", "")
        ),
        *(f"lfm2\n<|tool_call_start|>[weather({kind}='1')]<|tool_call_end|>" for kind in _KINDS),
    ]
    answers = [f"{form}\n{text}" for form, text, *_ in ANSWERS.values()]
    return [text.encode() for text in (*answers, *typed)]


def _xml(name: str, value: str) -> str:
    return (
        f"<tool_call>\n<function=weather>\n<parameter={name}>\n{value}\n</parameter>\n"
        "</function>\n</tool_call>"
    )


def check(name: str, text: str) -> None:
    """Read an answer whole, by characters and in two or three parts; what is found can be sent."""
    form = load_format(name)
    whole = read(form.new_parser(_TOOLS), [text])
    for pieces in (list(text), cut(text, [len(text) // 2]), cut(text, [7, len(text) // 3])):
        assert read(form.new_parser(_TOOLS), pieces) == whole
    for part in (whole["content"], whole["reasoning"], *sum(whole["calls"], ())):
        part.encode()
    if name == "qwen_xml" or (name == "lfm2" and "{" not in text):
        for _, arguments in whole["calls"][:-1]:
            assert isinstance(json.loads(arguments), dict)


def read_everything(path: Path) -> None:
    """Check the answer in a file."""
    name, _, text = path.read_bytes().decode("utf-8", "replace").partition("\n")
    names = format_names()
    check(name if name in names else names[len(name) % len(names)], text)
