"""Evaluates the expression whose tree stdin holds with sympy, and prints its value as JSON.

Run as `python -I -S symbolic.py` with sympy and mpmath in /modules. Nothing of this package can be
imported here. Names lead to the tables below only: never to sympify, eval or an attribute.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

sys.path.append("/modules")

import sympy

_MOST_DIGITS = 4_000
_MOST_BITS = 13_287
"""Of that many digits."""
_MOST_EXPONENT = 1_000
_MOST_ORDER = 20

Tree = list[Any]
Value = Any
"""An object of sympy, or a list of them."""


class RefusedError(Exception):
    """An expression has a part that is unknown or too large."""


def main() -> None:
    """Print {"text": value} or {"error": line}."""
    try:
        answer = {"text": _shown(build(json.load(sys.stdin)))}
    except RefusedError as error:
        answer = {"error": str(error)}
    except (ArithmeticError, NotImplementedError, TypeError, ValueError, AttributeError) as error:
        answer = {"error": f"sympy cannot do this: {str(error) or type(error).__name__}"[:300]}
    print(json.dumps(answer))  # noqa: T201 - this is its result


def build(tree: Tree) -> Value:
    """Evaluate a tree, arguments before the functions of them."""
    kind, *parts = tree
    if kind == "number":
        return sympy.Rational(parts[0])
    if kind == "name":
        return _CONSTANTS.get(parts[0]) or sympy.Symbol(parts[0])
    if kind == "list":
        return [build(item) for item in parts[0]]
    if kind == "call":
        name, arguments = parts
        if name not in _FUNCTIONS:
            raise RefusedError(f"no function {name!r}; there are {', '.join(sorted(_FUNCTIONS))}")
        values = [build(argument) for argument in arguments]
        try:
            return _FUNCTIONS[name](*values)
        except (TypeError, AttributeError):
            raise RefusedError(f"{name} cannot have these {len(values)} arguments") from None
    return _OPERATORS[kind](*(_expression(build(part)) for part in parts))


def _expression(value: Value) -> Value:
    if isinstance(value, list):
        raise RefusedError("a list where a number is wanted")
    return value


def _power(base: Value, exponent: Value) -> Value:
    if exponent.is_number and exponent.is_real:
        size = abs(exponent)
        if base.is_Rational:
            # A number of b bits is at least 2^(b - 1).
            if size * (max(abs(base.p), base.q).bit_length() - 1) > _MOST_BITS:
                raise RefusedError(f"a power of more than {_MOST_DIGITS} digits")
        elif size > _MOST_EXPONENT:
            raise RefusedError(f"an exponent above {_MOST_EXPONENT}")
    return base**exponent


def _is_short(number: Value) -> bool:
    return int(max(abs(number.p), number.q)).bit_length() <= _MOST_BITS


def _bounded(function: Callable[..., Value], most: int) -> Callable[..., Value]:
    """A function that grows fast, for arguments up to a limit."""

    def checked(*arguments: Value) -> Value:
        for argument in arguments:
            if argument.is_number and abs(argument) > most:
                raise RefusedError(f"{function.__name__} of more than {most}")
        return function(*arguments)

    return checked


def _variable(expression: Value, given: tuple[Value, ...]) -> tuple[Value, ...]:
    """The arguments after the expression; with no variable first, its only one is put there."""
    if given and isinstance(given[0], sympy.Symbol):
        return given
    free = sorted(expression.free_symbols, key=str)
    if len(free) != 1:
        raise RefusedError("name the variable; there is not exactly one")
    return (free[0], *given)


def _integrate(expression: Value, *given: Value) -> Value:
    variable, *bounds = _variable(expression, given)
    return sympy.integrate(expression, (variable, *bounds))


def _diff(expression: Value, *given: Value) -> Value:
    variable, *order = _variable(expression, given)
    if order and not (order[0].is_Integer and 0 < order[0] <= _MOST_ORDER):
        raise RefusedError(f"a derivative of an order that is not 1 to {_MOST_ORDER}")
    return sympy.diff(expression, variable, *order)


def _series(expression: Value, *given: Value) -> Value:
    variable, *rest = _variable(expression, given)
    point = rest[0] if rest else 0
    order = rest[1] if len(rest) > 1 else 6
    if order > _MOST_ORDER:
        raise RefusedError(f"a series of an order above {_MOST_ORDER}")
    return sympy.series(expression, variable, point, int(order))


def _solve(equations: Value, *unknowns: Value) -> Value:
    many = equations if isinstance(equations, list) else [equations]
    wanted = [
        symbol for each in unknowns for symbol in (each if isinstance(each, list) else [each])
    ]
    return sympy.solve(many if len(many) > 1 else many[0], *wanted, dict=len(wanted) > 1)


def _number(expression: Value, *given: Value) -> Value:
    digits = given[0] if given else sympy.Integer(15)
    if not (digits.is_Integer and 0 < digits <= 1_000):
        raise RefusedError("digits that are not 1 to 1000")
    return sympy.N(expression, int(digits))


def _over(function: Callable[..., Value]) -> Callable[..., Value]:
    """A sum or product over (expression, variable, first, last)."""

    def ranged(expression: Value, variable: Value, first: Value, last: Value) -> Value:
        return function(expression, (variable, first, last))

    return ranged


def _limit(expression: Value, *given: Value) -> Value:
    variable, point = _variable(expression, given)
    return sympy.limit(expression, variable, point)


_CONSTANTS = {
    "pi": sympy.pi,
    "e": sympy.E,
    "E": sympy.E,
    "I": sympy.I,
    "i": sympy.I,
    "oo": sympy.oo,
    "inf": sympy.oo,
    "infinity": sympy.oo,
}
_SAME_NAME = (
    *("sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "atan2", "sinh", "cosh"),
    *("tanh", "asinh", "acosh", "atanh", "exp", "log", "sqrt", "cbrt", "floor", "ceiling", "sign"),
    *("re", "im", "conjugate", "gcd", "lcm", "erf", "Abs"),
    *("simplify", "factor", "expand", "cancel", "apart", "together", "trigsimp"),
)
_FUNCTIONS: dict[str, Callable[..., Value]] = {
    **{name: getattr(sympy, name) for name in _SAME_NAME},
    "abs": sympy.Abs,
    "ceil": sympy.ceiling,
    "ln": sympy.log,
    "Eq": sympy.Eq,
    "log10": lambda value: sympy.log(value, 10),
    "log2": lambda value: sympy.log(value, 2),
    "root": lambda value, order: _power(value, 1 / order),
    "pow": _power,
    "mod": sympy.Mod,
    "min": sympy.Min,
    "max": sympy.Max,
    "factorial": _bounded(sympy.factorial, 1_500),
    "gamma": _bounded(sympy.gamma, 1_500),
    "binomial": _bounded(sympy.binomial, 10_000),
    "fibonacci": _bounded(sympy.fibonacci, 10_000),
    "isprime": _bounded(sympy.isprime, 10**60),
    "factorint": _bounded(sympy.factorint, 10**60),
    "diff": _diff,
    "integrate": _integrate,
    "limit": _limit,
    "series": _series,
    "solve": _solve,
    "sum": _over(sympy.summation),
    "product": _over(sympy.product),
    "subs": lambda expression, old, new: expression.subs(old, new),
    "N": _number,
    "det": lambda rows: sympy.Matrix(rows).det(),
    "inverse": lambda rows: sympy.Matrix(rows).inv(),
}
_OPERATORS: dict[str, Callable[..., Value]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: sympy.floor(a / b),
    "%": sympy.Mod,
    "**": _power,
    "=": sympy.Eq,
    "!=": sympy.Ne,
    "<": sympy.Lt,
    "<=": sympy.Le,
    ">": sympy.Gt,
    ">=": sympy.Ge,
    "negative": lambda a: -a,
    "positive": lambda a: a,
}


def _shown(value: Value) -> str:
    """The value as text, with decimals beside what is exact."""
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    if not isinstance(value, sympy.Basic):
        return str(value)
    if value.has(sympy.zoo, sympy.nan):
        raise RefusedError("the value is not defined")
    if not all(map(_is_short, value.atoms(sympy.Rational))):
        raise RefusedError(f"the result has more than {_MOST_DIGITS} digits")
    is_exact = not isinstance(value, sympy.Integer | sympy.Float) and value.is_finite
    if is_exact and isinstance(value, sympy.Expr) and value.is_number:
        return f"{value} (about {_decimals(sympy.N(value))})"
    return str(value)


def _decimals(number: Value) -> str:
    """A number to 15 digits, without zeros at the end."""
    if number.is_real and 1e-9 < abs(number) < 1e15:
        return f"{float(number):.15g}"
    return str(number)


if __name__ == "__main__":
    main()
