"""Forms that are refused, each with the reason, before anything is computed."""

import copy
import json
import time
from typing import Any

import numpy as np
import pytest

from grammar_cases import small_tokenizer
from powerinfer.errors import PromptError
from powerinfer.sampling.grammar import json_schema
from powerinfer.sampling.grammar.constraint import Constraint
from powerinfer.sampling.sampling_params import SamplingParams


def refused(**form: Any) -> str:
    """What is said of a form."""
    with pytest.raises(PromptError) as caught:
        Constraint(small_tokenizer("byte level"), SamplingParams(**form))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    return str(caught.value)


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"uniqueItems": True}, "uniqueItems"),
        ({"not": {"type": "string"}}, "not"),
        ({"if": {}, "then": {}}, "if"),
        ({"contains": {}}, "contains"),
        ({"propertyNames": {}}, "propertyNames"),
        ({"unevaluatedProperties": False}, "unevaluatedProperties"),
        ({"format": "colour"}, "Unknown format: colour"),
        ({"type": "objekt"}, "Invalid type: objekt"),
        ({"type": 5}, "type must be"),
        ({"pattern": "(?=a)b"}, "look-around"),
        ({"pattern": "(a"}, "unclosed group"),
        ({"$ref": "https://example.com/a.json"}, "example.com"),
        ({"$ref": "#/$defs/none"}, "does not exist"),
        ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "cannot be enforced"),
        ({"enum": []}, "Unsatisfiable"),
        ({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]}, "oneOf"),
        ({"multipleOf": 9999991}, "multipleOf"),
        ({"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]}, "multipleOf"),
        ({"type": "object", "minProperties": 2}, "minProperties 2"),
        ({"pattern": "a{100000}"}, "at most 10000"),
        ({"patternProperties": {"^a{100000}$": {}}}, "at most 10000"),
        ({"properties": {"a": {"pattern": "a?" * 1500}, "b": {"pattern": "b+" * 1500}}}, "in 3000"),
        (nested(60), "nested more than 100 levels"),
        ({"x-guidance": {"lenient": True}, "not": {}}, "not"),
    ],
)
def test_schemas_that_cannot_be_enforced(schema: dict[str, Any], reason: str) -> None:
    assert reason in refused(json_schema=schema)
    assert reason in refused(json_schema=json.dumps(schema))


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("{", "not valid JSON"),
        ('{"a": NaN}', "not valid JSON"),
        ("[" * 100_000, "not valid JSON: it is nested too deeply"),
        ("[]", "must be a JSON schema"),
        ("true", "must be a JSON schema"),
        ({"minimum": float("inf")}, "not valid JSON"),
        ({"a": {1, 2}}, "not valid JSON"),
        ({"description": "x" * 70_000}, "at most 65536"),
        (5, "must be a JSON schema"),
    ],
)
def test_what_is_no_schema(schema: Any, reason: str) -> None:
    with pytest.raises(PromptError, match=reason):
        SamplingParams(json_schema=schema)


def test_a_schema_in_itself_is_no_schema() -> None:
    schema: dict[str, Any] = {}
    schema["items"] = schema
    with pytest.raises(PromptError, match="not valid JSON"):
        SamplingParams(json_schema=schema)


@pytest.mark.parametrize(
    ("regex", "reason"),
    [
        ("(a", "unclosed group"),
        ("[a", "unclosed character class"),
        ("a**{", "repetition"),
        ("\\", "ends with a backslash"),
        ("a\\\\\\", "ends with a backslash"),
        ("(?=a)b", "look-around"),
        (r"\bword", "lookarounds"),
        (r"(a)\1", "backreferences"),
        ("a{100000}", "at most 10000"),
        ("a{5, 99999999999999999999}", "at most 10000"),
        ("(" * 1000 + "a" + ")" * 1000, "cannot be enforced"),
        ("((a{1000}b){1000}){1000}", "counts within counts multiplied"),
        ("\\p{Nothing}", "Unicode"),
        (".?" * 2500, "in 2500 places; at most 2000"),
    ],
)
def test_expressions_that_cannot_be_enforced(regex: str, reason: str) -> None:
    assert reason in refused(regex=regex)


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ("", "no rule named root"),
        ('start ::= "a"', "no rule named root"),
        ("root ::= b", "no rule named b, which rule root refers to"),
        ('root ::= "a"\nroot ::= "b"', "line 2, column 5: rule root is defined a second time"),
        ('root ::= "a', 'line 1, column 12: expected the " that ends the text'),
        ('root ::= "a\n"', 'expected the " that ends'),
        ("root ::= [a", "expected the ] that ends the set"),
        ("root ::= [z-a]", "a range ends before it begins"),
        ("root ::= []", "a set without a character"),
        (r'root ::= "\q"', r"unknown escape \q"),
        (r'root ::= "\uD800"', "is no character"),
        (r'root ::= "\UFFFFFFFF"', "is no character"),
        ('root ::= ("a"', "expected )"),
        ('root ::= "a")', "expected the end of the rule"),
        ("root := a", "expected ::= after the name root"),
        ('root ::= "a"{}', "expected {m}, {m,} or {m,n}"),
        ('root ::= "a"{3,2}', "larger number first"),
        ('root ::= "a"{100000}', "at most 10000"),
        ('root ::= (("a"{999} "b"){999} | "c"){999}', "counts within counts multiplied"),
        (
            "root ::= r2999\nr0 ::= [a]\n"
            + "\n".join(f"r{i} ::= r{i - 1}" for i in range(1, 3000)),
            "3001 rules",
        ),
        ("root ::= " + "(" * 60 + '"a"' + ")" * 60, "more than 50 groups"),
        ("root ::= !<think>", "only a token by its number"),
        ("root ::= root", "cannot be enforced"),
        ('root ::= root "a"', "cannot be enforced"),
        ("%llguidance {}\nstart: (", "cannot be enforced"),
        ("%llguidance {}\nstart: A1\n" + "".join(f"A{i}: /a/\n" for i in range(600)), "600 parts"),
        ("%llguidance {}\nrule: A", "cannot be enforced"),
        ("%llguidance {}\nstart: " + "(" * 1000 + '"a"' + ")" * 1000, "too deeply nested"),
    ],
)
def test_grammars_that_cannot_be_enforced(grammar: str, reason: str) -> None:
    assert reason in refused(grammar=grammar)


def test_only_one_form_can_be_given() -> None:
    with pytest.raises(PromptError, match="regex and grammar are given together"):
        SamplingParams(regex="a", grammar='root ::= "a"')
    with pytest.raises(PromptError, match="half of a surrogate pair"):
        SamplingParams(regex="\ud800")
    with pytest.raises(PromptError, match="must be a text"):
        SamplingParams(grammar=b"root")  # type: ignore[arg-type]
    with pytest.raises(PromptError, match="at most 65536"):
        SamplingParams(regex="a" * 70_000)
    with pytest.raises(PromptError, match="neither"):
        Constraint(small_tokenizer("byte level"), SamplingParams())


_ROW = np.random.default_rng(0).normal(size=1000).astype(np.float32)

# What makes other engines run for minutes or fill the memory.
HOSTILE: dict[str, dict[str, Any]] = {
    "levels of references": {
        "json_schema": {
            "$defs": {"l0": {"type": "string"}}
            | {f"l{i}": {"anyOf": [{"$ref": f"#/$defs/l{i - 1}"}] * 2} for i in range(1, 40)},
            "$ref": "#/$defs/l39",
        }
    },
    "combinations": {
        "json_schema": {
            "allOf": [
                {"anyOf": [{"required": [f"a{i}"]}, {"required": [f"b{i}"]}]} for i in range(20)
            ]
        }
    },
    "long texts": {"json_schema": {"type": "string", "minLength": 10**6, "maxLength": 10**9}},
    "long lists": {"json_schema": {"type": "array", "minItems": 10**9}},
    "many properties": {
        "json_schema": {"properties": {f"p{i}": {} for i in range(3000)}, "type": "object"}
    },
    "many values": {"json_schema": {"enum": [f"w{i}" for i in range(6000)]}},
    "wide numbers": {"json_schema": {"type": "number", "minimum": -1e300, "maximum": 1e300}},
    "states": {"regex": "(a|b)*a(a|b){200}c"},
    "counts in counts": {"regex": "(.{1,300}){1,300}x"},
    "letters": {"regex": r"(\p{L}\p{N}){1,5000}"},
    "rules": {"grammar": "root ::= r40\nr0 ::= [ab]\n" + "\n".join(
        f"r{i} ::= r{i - 1} r{i - 1}" for i in range(1, 41))},
    "nested counts": {"grammar": 'root ::= (("a"{9999}){9999}){9999}'},
    "ambiguity": {"grammar": 'root ::= root root | "a" | ""'},
    "long chain": {"grammar": "root ::= x r1900\nx ::= x | [ab]\nr0 ::= [ab]\n" + "\n".join(
        f"r{i} ::= r{i - 1} x?" for i in range(1, 1901))},
    "chain of references": {"json_schema": {f"a{i}": {"items": {"$ref": f"#/a{i - 1}"}}
        for i in range(1, 1800)} | {"a0": {}, "$ref": "#/a1799"}},
    "chain of Lark": {"grammar": "%llguidance {}\nstart: r3000\nr0: /[ab]/\n" + "".join(
        f"r{i}: r{i - 1} r0?\n" for i in range(1, 1901)) + "r3000: r1900\n"},
    "wide sets": {"grammar": "root ::= x root | y\nx ::= " + " | ".join(
        f"[a-z{chr(0x400 + i)}]+" for i in range(300)) + '\ny ::= "!"'},
    "lexer": {"grammar": "%llguidance {}\nstart: A\nA: ~(/.*a.{20}/) & /(.*b.{20}c)*/"},
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_forms_end_soon(name: str) -> None:
    """Either refused, or a text of some tokens begins; both in bounded time and memory."""
    tokenizer = small_tokenizer("byte level")
    params = SamplingParams(**HOSTILE[name])
    started = time.process_time()
    try:
        constraint = Constraint(tokenizer, params)
        for _ in range(50):
            if constraint.is_complete:
                break
            masked = constraint.mask(_ROW[: tokenizer.vocab_size])
            constraint.accept(int(masked.argmax()))
    except PromptError as error:
        assert "\n" not in str(error)
    # A second is usual at most; this only tells it from minutes.
    assert time.process_time() - started < 30


NAMED: dict[str, object] = {"properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("schema", "is_closed"),
    [
        (NAMED, True),
        ({"anyOf": [NAMED, {"type": "string"}]}, True),
        ({"properties": {"inner": NAMED}, "required": ["inner"]}, True),
        ({**NAMED, "additionalProperties": True}, False),
        ({**NAMED, "required": ["a", "b"]}, False),
        ({"allOf": [NAMED, {"properties": {"b": {}}}]}, False),
        ({**NAMED, "anyOf": [{"required": ["b"]}]}, False),
        ({"type": "object"}, False),
    ],
)
def test_objects_with_named_properties_have_no_others(
    schema: dict[str, object], is_closed: bool
) -> None:
    closed = json_schema.closed(copy.deepcopy(schema))
    assert ('"additionalProperties": false' in json.dumps(closed)) is is_closed
