"""Whatever random logits write for a random schema is JSON that the schema allows."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grammar_cases import REAL, real_tokenizer, small_tokenizer, written
from powerinfer.errors import PromptError

Schema = dict[str, Any]
TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
}
PATTERNS = ("^[a-f]{1,4}$", "^(red|blue) ?[0-9]*$", "x+y", r"^\d{2}-\d{2}$")


def allows(schema: Schema, value: Any, root: Schema) -> bool:
    """Whether a schema allows a value, for the keywords that are generated here."""
    if "$ref" in schema:
        return allows(root["$defs"][schema["$ref"].rpartition("/")[2]], value, root)
    if "anyOf" in schema and not any(allows(each, value, root) for each in schema["anyOf"]):
        return False
    if "allOf" in schema and not all(allows(each, value, root) for each in schema["allOf"]):
        return False
    if "enum" in schema and not any(_same(value, each) for each in schema["enum"]):
        return False
    if "const" in schema and not _same(value, schema["const"]):
        return False
    kind = schema.get("type")
    if kind in ("integer", "number"):
        return _is_number(schema, value)
    if kind is not None and not isinstance(value, TYPES[kind]):
        return False
    if isinstance(value, str):
        return _is_text(schema, value)
    if isinstance(value, list):
        return _is_list(schema, value, root)
    return not isinstance(value, dict) or _is_object(schema, value, root)


def _same(first: Any, second: Any) -> bool:
    return json.dumps(first, sort_keys=True) == json.dumps(second, sort_keys=True)


def _is_number(schema: Schema, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if schema["type"] == "integer" and not float(value).is_integer():
        return False
    multiple = schema.get("multipleOf")
    return (
        value >= schema.get("minimum", value)
        and value <= schema.get("maximum", value)
        and ("exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"])
        and (multiple is None or value % multiple == 0)
    )


def _is_text(schema: Schema, value: str) -> bool:
    pattern = schema.get("pattern")
    return schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)) and (
        pattern is None or re.search(pattern, value) is not None
    )


def _is_list(schema: Schema, value: list[Any], root: Schema) -> bool:
    if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
        return False
    first = schema.get("prefixItems", [])
    rest = schema.get("items", {})
    return all(
        allows(first[place] if place < len(first) else rest, each, root)
        for place, each in enumerate(value)
    )


def _is_object(schema: Schema, value: dict[str, Any], root: Schema) -> bool:
    properties = schema.get("properties", {})
    others = schema.get("additionalProperties", {})
    if not set(schema.get("required", ())) <= set(value):
        return False
    for key, each in value.items():
        rule = properties.get(key, others)
        if rule is False or not allows(rule, each, root):
            return False
    return True


def _texts() -> st.SearchStrategy[Schema]:
    lengths = st.fixed_dictionaries(
        {"type": st.just("string")},
        optional={"minLength": st.integers(0, 3), "maxLength": st.integers(3, 6)},
    )
    patterns = st.sampled_from(PATTERNS).map(lambda each: {"type": "string", "pattern": each})
    return st.one_of(lengths, patterns)


def _numbers() -> st.SearchStrategy[Schema]:
    integers = st.fixed_dictionaries(
        {"type": st.just("integer"), "maximum": st.integers(10, 2000)},
        optional={"minimum": st.integers(-50, 10), "multipleOf": st.sampled_from([2, 5, 7])},
    )
    numbers = st.fixed_dictionaries(
        {"type": st.just("number"), "maximum": st.sampled_from([1.5, 100])},
        optional={"minimum": st.just(-3), "exclusiveMinimum": st.just(0)},
    )
    return st.one_of(integers, numbers)


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=3), st.just({"a": [1, "é"]})
)
LEAVES = st.one_of(
    _texts(),
    _numbers(),
    st.sampled_from(["boolean", "null"]).map(lambda kind: {"type": kind}),
    VALUES.map(lambda value: {"const": value}),
    st.lists(VALUES, min_size=1, max_size=3).map(lambda values: {"enum": values}),
)


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    """An object with some properties; without others, or with others of one kind."""
    properties = draw(st.dictionaries(st.sampled_from("abcdé"), inner, min_size=1, max_size=3))
    others = draw(st.one_of(st.just(False), st.just({"type": "boolean"})))
    required = draw(st.lists(st.sampled_from(sorted(properties)), unique=True))
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": others,
    }


def _wider(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    lists = st.fixed_dictionaries(
        {"type": st.just("array"), "items": inner, "maxItems": st.integers(2, 3)},
        optional={"minItems": st.integers(0, 2), "prefixItems": st.lists(inner, max_size=2)},
    )
    either = st.lists(inner, min_size=1, max_size=3).map(lambda each: {"anyOf": each})
    return st.one_of(objects(inner), lists, either)


SCHEMAS = st.recursive(LEAVES, _wider, max_leaves=5)
TREE: Schema = {
    "$defs": {
        "tree": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 4},
                "parts": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 1},
            },
            "required": ["name"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/tree",
}


def check(text: str | None, schema: Schema) -> None:
    """Check a text that random logits wrote; None: it did not end in time."""
    if text is None:
        return
    value = json.loads(text)
    assert allows(schema, value, schema), (schema, text)
    without_texts = re.sub(r'"(?:[^"\\]|\\.)*"', "", text)
    assert not re.search(r"\s", without_texts), text


@given(
    schema=SCHEMAS,
    kind=st.sampled_from(["sentencepiece", "byte level", "no end"]),
    seed=st.integers(0, 9),
)
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
def test_what_is_written_is_what_the_schema_allows(schema: Schema, kind: str, seed: int) -> None:
    try:
        text = written(small_tokenizer(kind), seed, json_schema=schema)
    except PromptError as error:
        # Two keywords that leave nothing, such as multiples of 7 from 1 to 3.
        assert "cannot be enforced" in str(error), schema
        return
    check(text, schema)


@pytest.mark.parametrize(
    "name",
    [name if name == "gpt2" else pytest.param(name, marks=pytest.mark.slow) for name in REAL],
)
def test_real_vocabularies_write_what_schemas_allow(name: str, data_dir: Path) -> None:
    tokenizer = real_tokenizer(name, data_dir)
    schemas: list[Schema] = [
        TREE,
        {
            "type": "object",
            "properties": {
                "id": {"type": "integer", "minimum": 1, "maximum": 999},
                "kind": {"enum": ["alpha", "beta", 3, None]},
                "code": {"type": "string", "pattern": "^[A-F]{2}[0-9]{3}$"},
                "words": {"type": "array", "items": {"type": "string", "maxLength": 8}},
            },
            "required": ["id", "kind", "code", "words"],
            "additionalProperties": False,
        },
    ]
    num_ended = 0
    for schema in schemas:
        for temperature in (0.0, 1.0):
            text = written(tokenizer, 4, json_schema=schema, temperature=temperature)
            check(text, schema)
            num_ended += text is not None
    assert num_ended >= 3


def test_greedy_and_seeded_texts_are_the_same_again() -> None:
    tokenizer = small_tokenizer("byte level")
    for temperature in (0.0, 1.0):
        texts = {written(tokenizer, 7, json_schema=TREE, temperature=temperature) for _ in range(3)}
        assert len(texts) == 1
    assert len({written(tokenizer, seed, json_schema=TREE) for seed in range(5)}) > 1
