"""`run --json-schema`, `--regex` and `--grammar`."""

import json
import re
from pathlib import Path

import pytest

from command_line import assert_error, invoke

SCHEMA = {
    "type": "object",
    "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["age"],
    "additionalProperties": False,
}


@pytest.fixture
def schema_file(tmp_path: Path) -> Path:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA), encoding="utf-8")
    return path


def test_run_keeps_to_a_schema_an_expression_and_a_grammar(
    schema_file: Path, tmp_path: Path
) -> None:
    grammar = tmp_path / "answer.gbnf"
    grammar.write_text('root ::= ("yes" | "no") "!"\n', encoding="utf-8")
    common = ("run", "-p", "Once", "--seed", "1", "--json")
    by_schema = json.loads(invoke(*common, "--json-schema", str(schema_file)).stdout)
    assert 0 <= json.loads(by_schema["text"])["age"] <= 99
    assert by_schema["finish_reason"] == "stop"
    by_regex = json.loads(invoke(*common, "--regex", "[A-Z][a-z]{2}").stdout)
    assert re.fullmatch("[A-Z][a-z]{2}", by_regex["text"])
    by_grammar = json.loads(invoke(*common, "--grammar", str(grammar)).stdout)
    assert by_grammar["text"] in ("yes!", "no!")


def test_bad_forms_are_errors_of_one_line(schema_file: Path, tmp_path: Path) -> None:
    common = ("run", "-p", "Once")
    bad = tmp_path / "bad.json"
    bad.write_text("{", encoding="utf-8")
    assert_error(invoke(*common, "--json-schema", str(bad)), "--json-schema", "not valid JSON")
    assert_error(invoke(*common, "--json-schema", str(tmp_path / "no.json")), "no such file")
    assert_error(invoke(*common, "--json-schema", '{"type": "object"}'), "name of a file")
    assert_error(invoke(*common, "--grammar", 'root ::= "a"'), "name of a file")
    assert_error(invoke(*common, "--regex", "(a"), "cannot be enforced: unclosed group")
    both = invoke(*common, "--regex", "a", "--json-schema", str(schema_file))
    assert_error(both, "give only one (--json-schema or --regex)")
    assert_error(invoke("chat", "--regex", "a"), "powerinfer run")


@pytest.mark.parametrize(
    ("flag", "content", "reason"),
    [
        ("--grammar", "root ::= (", "the grammar"),
        ("--grammar", 'root ::= "a" missing', "missing"),
        ("--json-schema", '{"type": "strin"}', "the JSON schema"),
    ],
)
def test_bad_forms_are_found_before_a_model_is_loaded(
    flag: str, content: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("powerinfer.cli.model.open_llm", None)
    form = tmp_path / "form"
    form.write_text(content)
    assert_error(invoke("run", "-p", "Hi", flag, form), reason)


def test_a_bad_expression_is_found_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("powerinfer.cli.model.open_llm", None)
    assert_error(invoke("run", "-p", "Hi", "--regex", "a(b"), "the regular expression", "unclosed")
