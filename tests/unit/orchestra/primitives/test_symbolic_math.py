"""`symbolic_math`: what it answers, and expressions made to run code or to use up the machine."""

import json
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from powerinfer.orchestra.primitives import symbolic_math
from powerinfer.orchestra.primitives._expressions import expression_tree
from powerinfer.orchestra.primitives.primitive import PrimitiveError
from powerinfer.orchestra.sandbox.limits import Limits
from powerinfer.values import JSON
from primitive_calls import ScriptedWorker, call, run
from sandbox_cases import need_sandbox


def _answer(query: str, worker: ScriptedWorker | None = None) -> str:
    pytest.importorskip("sympy", reason="sympy is not installed")
    need_sandbox()
    return run("symbolic_math", call(query, ask=worker)).text


_ANSWERS = {
    "12*(3+4) - 2^3": "76",
    "1/3 + 0.5": "5/6 (about 0.833333333333333)",
    "solve(x^2 - 5x + 6 = 0, x)": "[2, 3]",
    "solve([x + y = 3, x - y = 1], [x, y])": "[{x: 2, y: 1}]",
    "integrate(x^2, 0, 3)": "9",
    "integrate(x*y, x, 0, 1)": "y/2",
    "sum(k^2, k, 1, 10)": "385",
    "N(pi, 30)": "3.14159265358979323846264338328",
    "diff(x^3)": "3*x**2",
    "simplify((x^2-1)/(x-1))": "x + 1",
    "limit(sin(x)/x, x, 0)": "1",
    "series(exp(x), x, 0, 3)": "1 + x + x**2/2 + O(x**3)",
    "factorint(360)": "{2: 3, 3: 2, 5: 1}",
    "det([[1, 2], [3, 4]])": "-2",
    "sqrt(-2)": "sqrt(2)*I (about 1.4142135623731*I)",
    "17 % 5": "2",
    "log10(1000)": "3",
}


def test_answers() -> None:
    """All in one expression: starting sympy takes longer than all of them."""
    assert _answer(f"[{', '.join(_ANSWERS)}]") == f"[{', '.join(_ANSWERS.values())}]"


@pytest.mark.parametrize(
    ("command", "same"),
    [
        ("solve x^2 = 4 for x", "solve(x**2 == 4, x)"),
        ("Integrate: x*sin(x) from 0 to pi", "integrate(x*sin(x), 0, pi)"),
        ("integrate x*y dx from 0 to 1", "integrate(x*y, x, 0, 1)"),
        ("differentiate x^3 with respect to x", "diff(x**3, x)"),
        ("simplify (x^2-1)/(x-1)", "simplify((x**2-1)/(x-1))"),
        ("factorize x\u00d7y \u2212 y", "factor(x*y - y)"),
        ("Calculate 2(3+4)?", "2*(3+4)"),
        ("3x + 2.5y - 1e3", "3*x + 2.5*y - 1000.0"),
    ],
)
def test_commands_in_words(command: str, same: str) -> None:
    assert expression_tree(command) == expression_tree(same)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("9**9**9**9", "a power of more than 4000 digits"),
        ("factorial(10**9)", "factorial of more than 1500"),
    ],
)
def test_what_is_too_large_is_refused_at_once(query: str, message: str) -> None:
    with pytest.raises(PrimitiveError, match=message.replace("(", r"\(")):
        _answer(query)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("1/0", "the value is not defined"),
        ("((10**3999)**3)**3", "a power of more than 4000 digits"),
        ("(1 + 1/10**9)**(10**9)", "a power of more than 4000 digits"),
        ("x**(10**9)", "an exponent above 1000"),
        ("10**2000 * 10**2500", "the result has more than 4000 digits"),
        ("N(pi, 10**9)", "digits that are not 1 to 1000"),
        ("diff(x, x, 10**6)", "a derivative of an order"),
        ("gamma(10**9)", "gamma of more than 1500"),
        ("isprime(10**99 + 1)", "isprime of more than"),
        ("exec(1)", "no function 'exec'; there are Abs"),
        ("expand((x + 1)^999)", "takes too much output"),
        ("[1] + 2", "a list where a number is wanted"),
        ("diff()", "diff cannot have these 0 arguments"),
    ],
)
def test_more_that_is_refused(query: str, message: str) -> None:
    with pytest.raises(PrimitiveError, match=message.replace("(", r"\(")):
        _answer(query)


def test_what_takes_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symbolic_math, "_LIMITS", Limits(seconds=0.1))
    with pytest.raises(PrimitiveError, match="the expression takes too much time"):
        _answer("factorint(10**59 + 1)")


@pytest.mark.parametrize(
    "query",
    [
        "__import__('os').system('id')",
        "x.__class__",
        "(1).real",
        "__builtins__",
        "foo(3) + __",
        "a__class__b",
        "[c for c in (1, 2)]",
        "lambda: 1",
        "'text'",
        "f(**x)",
        "f(*x)",
        "x[0]",
        "{1: 2}",
        "1 if x else 2",
        "x := 1",
        "x and y",
        "1 < x < 2",
        "~1",
        "1e999",
        "True",
        "x @ y",
        "f(1)(2)",
        "what is this",
        "",
        "(" * 300,
        "-" * 1500 + "1",
        "f(" * 150 + ")" * 150,
        "+".join("x" * 999),
        "1" * 2001,
        "\0",
        "\ud800",
    ],
)
def test_what_is_no_mathematics_never_reaches_sympy(query: str) -> None:
    with pytest.raises(PrimitiveError) as raised:
        expression_tree(query)
    assert "\n" not in str(raised.value)


_KINDS = {"number", "name", "list", "call", "negative", "positive", "=", "!="} | set("+-*/%<>")


def _check(tree: JSON) -> None:
    assert isinstance(tree, list)
    kind, *parts = tree
    assert kind in _KINDS | {"//", "**", "<=", ">="}
    match kind, parts:
        case ("number", [str(digits)]):
            float(digits)
        case ("name", [str(name)]):
            assert name.isidentifier()
            assert not name.startswith("_")
        case ("list", [list(items)]):
            list(map(_check, items))
        case ("call", [str(name), list(arguments)]):
            assert not name.startswith("_")
            list(map(_check, arguments))
        case _:
            list(map(_check, parts))


@given(st.text(max_size=60) | st.text(alphabet="x1_.()[]{}+*^=<-, 'eflo", max_size=40))
@example("solve x" + " " * 1_900 + "y")
@example("integrate x from" + " " * 1_900)
@example("integrate " + "a from " * 250)
def test_any_text_is_a_tree_of_known_parts_or_refused(text: str) -> None:
    try:
        tree = expression_tree(text)
    except PrimitiveError:
        return
    _check(tree)
    json.dumps(tree)


def test_the_worker_writes_an_expression_for_words() -> None:
    worker = ScriptedWorker("`2 + 2`")
    assert _answer("two and two?", worker) == "4"
    with pytest.raises(PrimitiveError, match="not an expression"):
        _answer("two and two?", ScriptedWorker("four, I think"))


def test_without_sympy_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sympy", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PrimitiveError, match="sympy is not installed: install the extra orchestra"):
        run("symbolic_math", call("1 + 1"))
