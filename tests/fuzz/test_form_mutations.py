"""Schemas, expressions and grammars that were damaged at random are followed or refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from form_target import SOURCES, follow, read_everything, seeds
from powerinfer.sampling.sampling_params import FORMS

_PLACES = [(kind, source) for kind in FORMS for source in SOURCES[kind]]
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
_KEYWORDS = st.sampled_from(
    [
        *("type", "items", "$ref", "enum", "const", "pattern", "minimum", "maxLength", "anyOf"),
        *("multipleOf", "required", "properties", "allOf", "oneOf", "format", "minProperties"),
        "x-guidance",
    ]
)


def test_the_seeds_are_followed(tmp_path: Path) -> None:
    for kind, source in _PLACES:
        assert follow(kind, source), source
    for seed in seeds():
        path = tmp_path / "form"
        path.write_bytes(seed)
        read_everything(path)


@given(
    place=st.sampled_from(_PLACES),
    cut=st.integers(0, 400),
    inserted=st.text("{}[]()|*+?\\\"'ab01,:.^$-<>~&%\n é\x00\ud800", max_size=6),
    length=st.integers(0, 12),
)
@settings(deadline=None)
def test_other_characters(place: tuple[str, str], cut: int, inserted: str, length: int) -> None:
    kind, source = place
    follow(kind, source[:cut] + inserted + source[cut + length :])


@example(keyword="$ref", value="\x1f", name="a")
@given(keyword=_KEYWORDS, value=_values, name=st.sampled_from(["a", "b", "d", ""]))
@settings(deadline=None)
def test_other_values_of_keywords(keyword: str, value: Any, name: str) -> None:
    schema = json.loads(SOURCES["json_schema"][0])
    (schema["properties"][name] if name else schema)[keyword] = value
    follow("json_schema", json.dumps(schema))


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize(
    "source", ["", "\n", "\x00", "é", "(", "{", "[", '"', "\\", "%", "%llguidance"]
)
def test_short_sources(kind: str, source: str) -> None:
    follow(kind, source)
