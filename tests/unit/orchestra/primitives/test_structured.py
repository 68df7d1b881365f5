"""`parse_structured` and `extract_field`: what they read, and text made to break readers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerinfer.orchestra.primitives._paths import follow, path_at_start, schema_of
from powerinfer.orchestra.primitives._structured import dump, parse
from powerinfer.orchestra.primitives.primitive import Call, Observation, PrimitiveError
from primitive_calls import ScriptedWorker, call, run


def _parse(query: str, *inputs: str) -> object:
    return json.loads(run("parse_structured", call(query, *inputs)).text)


def _extract(made: Call) -> Observation:
    return run("extract_field", made)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('{"a": [1, 2.5, null]}', {"a": [1, 2.5, None]}),
        ('Here it is:\n```json\n{"a": 1}\n```\nDone.', {"a": 1}),
        ('The answer is {"a": 1}, as asked.', {"a": 1}),
        ("a = 1\n[b]\nc = 1979-05-27", {"a": 1, "b": {"c": "1979-05-27"}}),
        ("name,age\nAda,36\nAlan,41", [{"name": "Ada", "age": 36}, {"name": "Alan", "age": 41}]),
        ("Parse this CSV:\nid;zip\n1;007", [{"id": 1, "zip": "007"}]),
        ('a\tb\n"x\ty"\t-0', [{"a": "x\ty", "b": "-0"}]),
        ("name: Ada Lovelace\nborn: 1815", {"name": "Ada Lovelace", "born": 1815}),
        ("Parse: colour=red; size=1.50", {"colour": "red", "size": 1.5}),
        ("n: 123456789012345678901234567890", {"n": "123456789012345678901234567890"}),
    ],
)
def test_formats(text: str, wanted: object) -> None:
    assert _parse(text) == wanted
    assert _parse("parse this", text) == wanted


def test_several_results_become_a_list() -> None:
    assert _parse("parse these", "a: 1", "b: 2") == [{"a": 1}, {"b": 2}]


def test_the_named_format_is_tried_first() -> None:
    assert _parse("as key-value", "a = 'x'") == {"a": "'x'"}
    assert _parse("read it", "a = 'x'") == {"a": "x"}
    assert _parse("as csv", '{"a": 1}') == {"a": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no structure at all", "no json, toml, csv, key-value in this text"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a":' * 30_000, "nested too deeply"),
        ("a = " + "[" * 100_000, "nested too deeply"),
        ("x" * 200_001, "200,001 characters; at most 200,000 are parsed"),
        ("[NaN]", "no json"),
        ("[1e999]", "no json"),
        ('["a", {"b": 1, "b": 2}]', "no json"),
        ("[" + "9" * 5000 + "]", "no json"),
        ("", "no json"),
        ("\x00", "no json"),
    ],
)
def test_what_cannot_be_parsed_is_one_line(text: str, message: str) -> None:
    with pytest.raises(PrimitiveError, match=message) as raised:
        _parse("parse it", text)
    assert "\n" not in str(raised.value)


@given(st.text() | st.text(alphabet='{}[]",:=;|`\n\t 0a-', max_size=60))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        written = dump(parse(text))
    except PrimitiveError as error:
        assert "\n" not in str(error)
    else:
        json.loads(written.encode())


@pytest.mark.parametrize("filling", [" ", "\t", "\n", "`", "```\n", "a:", ",", "=", '"', "a\n"])
def test_repetitions_take_linear_time(filling: str) -> None:
    """Quadratic readers would run into the time limit of tests."""
    text = (filling * 60_000)[:60_000]
    for wanted in ("csv", "key-value", "json"):
        try:
            parse(text + "x", wanted)
        except PrimitiveError:
            continue


def test_surrogates_become_text_that_can_be_encoded() -> None:
    assert _parse('{"a": "\\ud800"}') == {"a": "?"}
    assert _extract(call("a", '{"a": "\\ud800"}')).text == "?"


@pytest.mark.parametrize(
    ("path", "wanted"),
    [
        ("order.items[0].price", "9.5"),
        ("`$.order.items[-1].name`", "tea"),
        ("order.items[*].name", '["ink", "tea"]'),
        ("order.items.1.name", "tea"),
        ('order["of the"]', "true"),
        ("order", None),
    ],
)
def test_paths(path: str, wanted: str | None) -> None:
    order = {"items": [{"name": "ink", "price": 9.5}, {"name": "tea"}], "of the": True}
    text = json.dumps({"order": order})
    for made in (call(path, text), call(f"{path} from {text}"), call(f"{path}:\n{text}")):
        assert _extract(made).text == (wanted or json.dumps(order))


def test_the_field_is_in_one_of_several_results() -> None:
    assert _extract(call("b", '{"a": 1}', '{"b": 2}')).text == "2"
    assert _extract(call("b", '{"b": 1}', '{"b": 2}')).text == "[1, 2]"


@pytest.mark.parametrize(
    ("query", "inputs", "message"),
    [
        ("a.c", ('{"a": {"b": 1}}',), "no 'c' in the object with the keys b"),
        ("a[3]", ('{"a": [1]}',), "no 3 in a list of 1"),
        ("a.b", ('{"a": 5}',), "no 'b' in the value 5"),
        ("a.b", (), "extract_field has no text"),
        ("the price of tea", ('{"a": 1}',), "not a path: 'the price of tea'"),
        ("", ("text",), "not a path"),
    ],
)
def test_what_cannot_be_extracted(query: str, inputs: tuple[str, ...], message: str) -> None:
    with pytest.raises(PrimitiveError, match=message.replace("[", r"\[")):
        _extract(call(query, *inputs))


def test_errors_quote_hostile_keys_on_one_line() -> None:
    with pytest.raises(PrimitiveError) as raised:
        _extract(call("a", '{"x\\n\\u2028\\ud800<obs>": 1}'))
    assert str(raised.value) == "no 'a' in the object with the keys x ?<obs>"


def test_a_model_makes_json_of_other_text() -> None:
    worker = ScriptedWorker('{"order": {"total": 12}}')
    found = _extract(call("order.total", "Your order comes to twelve.", ask=worker))
    assert found.text == "12"
    assert worker.schemas == [schema_of(("order", "total"))]
    worker = ScriptedWorker('{"value": "tea"}')
    assert _extract(call("the drink", "She had tea.", ask=worker)).text == "tea"
    assert "She had tea." in worker.messages[0]


@pytest.mark.parametrize("answer", ["cut off {", '{"value": null}', "[" * 50_000, "{}"])
def test_a_model_that_does_not_find_it(answer: str) -> None:
    with pytest.raises(PrimitiveError):
        _extract(call("the drink", "She had tea.", ask=ScriptedWorker(answer)))


def test_json_without_the_field_asks_nobody() -> None:
    with pytest.raises(PrimitiveError, match="no 'b'"):
        _extract(call("b", '{"a": 1}', ask=ScriptedWorker()))


def test_untrusted_input_makes_untrusted_results() -> None:
    assert _extract(call("a", '{"a": 1}', has_untrusted_input=True)).untrusted
    assert not _extract(call("a", '{"a": 1}')).untrusted


_KEYS = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_-]{0,8}", fullmatch=True)


@given(
    st.lists(_KEYS | st.integers(-9, 9), min_size=1, max_size=6).filter(
        lambda s: isinstance(s[0], str)
    )
)
def test_a_written_path_is_read_again(steps: list[str | int]) -> None:
    written = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    found = path_at_start("$" + written)
    assert found is not None
    assert found.steps == tuple(steps)
    assert found.rest == ""


@given(st.text(max_size=80))
def test_any_query_is_a_path_or_not(query: str) -> None:
    found = path_at_start(query)
    if found is not None:
        with pytest.raises(PrimitiveError):
            follow(None, found.steps)
