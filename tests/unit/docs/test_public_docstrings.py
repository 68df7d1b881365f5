"""Docstrings of what `powerinfer` exports say what every argument and attribute is."""

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

import powerinfer

CLASSES = [
    value
    for value in (getattr(powerinfer, name) for name in powerinfer.__all__)
    if inspect.isclass(value) and not issubclass(value, Exception)
]


def _functions(owner: type) -> Iterator[tuple[str, Any]]:
    for name, value in vars(owner).items():
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        is_ours = inspect.isfunction(function) and function.__module__.startswith("powerinfer.")
        if is_ours and (name == "__init__" or not name.startswith("_")):
            yield name, function


def _entries(text: str | None, section: str) -> set[str]:
    found = re.search(rf"^{section}:\n((?:[ ].*\n|\n)*)", inspect.cleandoc(text or "") + "\n", re.M)
    return set(re.findall(r"^ {4}\*{0,2}(\w+):", found[1], re.M)) if found else set()


@pytest.mark.parametrize("owner", CLASSES, ids=lambda owner: owner.__name__)
def test_every_argument_and_attribute_is_documented(owner: type) -> None:
    missing = []
    if dataclasses.is_dataclass(owner):
        fields = {field.name for field in dataclasses.fields(owner) if field.name[0] != "_"}
        missing += sorted(fields - _entries(owner.__doc__, "Attributes"))
    for name, function in _functions(owner):
        if "__create_fn__" in function.__qualname__ or function.__code__.co_filename == "<string>":
            continue
        arguments = list(inspect.signature(function).parameters)[1:]
        documented = _entries(function.__doc__, "Args")
        missing += [f"{name}({each})" for each in arguments if each not in documented]
    assert not missing


def test_what_is_exported_has_classes() -> None:
    assert len(CLASSES) >= 10
