"""Mathematical expressions as trees: a whitelist over Python's syntax. Nothing is evaluated."""

import ast
import math
import re

from powerinfer.orchestra.primitives.primitive import PrimitiveError
from powerinfer.values import JSON

__all__ = ["expression_tree"]

_LONGEST = 2_000
_MOST_NODES = 400
_MOST_LEVELS = 40
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,19}")
_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.Eq: "=",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.USub: "negative",
    ast.UAdd: "positive",
}
_COMMAND = re.compile(
    r"(?P<verb>simplify|factor|factorize|expand|solve|integrate|differentiate|diff|evaluate|compute"
    r"|calculate) ?(?::| ) ?(?P<rest>.+)",
    re.IGNORECASE,
)
_VERBS = {"factorize": "factor", "differentiate": "diff"}
_PLAIN_VERBS = ("evaluate", "compute", "calculate")
_BOUNDS = re.compile(r"(?P<of>.+?) from (?P<low>.+?) to (?P<high>.+)")
_VARIABLE = re.compile(
    r"(?P<of>.+?) (?:for |wrt |with respect to |d(?=[a-z]$))(?P<name>[a-zA-Z]\w{0,9})"
)


def expression_tree(text: str) -> JSON:
    """Read one expression, such as `solve(x^2 = 4, x)` or `integrate x*sin(x) from 0 to pi`.

    Returns:
        Lists: ["number", digits], ["name", name], ["list", items], ["call", function, arguments],
        and [operator, operand, ...].

    Raises:
        PrimitiveError: it is too long or nested too deeply, or has anything else in it.
    """
    if len(text) > _LONGEST:
        raise PrimitiveError(f"an expression of {len(text):,} characters; at most {_LONGEST:,}")
    written = _as_python(_as_call(" ".join(text.split()).strip("`$?. ")))
    try:
        parsed = ast.parse(written.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise PrimitiveError(f"not an expression: {text.strip()[:80]!r}") from None
    if sum(1 for _ in ast.walk(parsed)) > 3 * _MOST_NODES:
        raise PrimitiveError(f"the expression has more than {_MOST_NODES} parts")
    return _tree(parsed.body, _MOST_LEVELS)


def _as_call(text: str) -> str:
    """`integrate x dx from 0 to 1` as `integrate(x, x, 0, 1)`; what is no command stays."""
    command = _COMMAND.fullmatch(text)
    if command is None:
        return text
    verb, rest = command["verb"].lower(), command["rest"]
    if verb in _PLAIN_VERBS:
        return rest
    arguments = []
    if verb == "integrate" and (bounds := _BOUNDS.fullmatch(rest)):
        rest = bounds["of"]
        arguments = [bounds["low"], bounds["high"]]
    if variable := _VARIABLE.fullmatch(rest):
        rest = variable["of"]
        arguments.insert(0, variable["name"])
    return f"{_VERBS.get(verb, verb)}({', '.join((rest, *arguments))})"


def _as_python(text: str) -> str:
    """Powers as `^`, one sign of equality, a number beside what it multiplies."""
    text = (
        text.replace("^", "**").replace("\u00d7", "*").replace("\u00f7", "/").replace("\u2212", "-")
    )
    text = re.sub(r"(?<![=<>!])=(?!=)", "==", text)
    return re.sub(r"(?<![\w.])(\d{1,99}(?:\.\d{1,99})?)(?=[a-df-zA-DF-Z(])", r"\1*", text)


def _tree(node: ast.AST, levels: int) -> JSON:
    if levels == 0:
        raise PrimitiveError(f"the expression is nested more than {_MOST_LEVELS} levels deep")

    def inner(*nodes: ast.AST) -> list[JSON]:
        return [_tree(each, levels - 1) for each in nodes]

    match node:
        case ast.Constant():
            return ["number", _digits(node.value)]
        case ast.Name():
            return ["name", _name(node.id)]
        case ast.BinOp():
            return [_operator(node.op), *inner(node.left, node.right)]
        case ast.UnaryOp():
            return [_operator(node.op), *inner(node.operand)]
        case ast.Compare(ops=[operator]):
            return [_operator(operator), *inner(node.left, *node.comparators)]
        case ast.List() | ast.Tuple():
            return ["list", inner(*node.elts)]
        case ast.Call(func=ast.Name(id=function), keywords=[]):
            return ["call", _name(function), inner(*node.args)]
        case _:
            raise PrimitiveError(
                f"an expression may not have this in it: {ast.unparse(node)[:60]!r}"
            )


def _digits(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise PrimitiveError(f"not a number: {str(value)[:60]!r}")
    return str(value)


def _name(name: str) -> str:
    if not _NAME.fullmatch(name) or "__" in name:
        raise PrimitiveError(f"not a name in mathematics: {name[:60]!r}")
    return name


def _operator(operator: ast.AST) -> str:
    if type(operator) not in _OPERATORS:
        raise PrimitiveError(f"not an operator in mathematics: {type(operator).__name__}")
    return _OPERATORS[type(operator)]
