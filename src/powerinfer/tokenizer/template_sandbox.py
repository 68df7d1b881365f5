"""The sandbox of chat templates: no access to Python, and no text of absurd size.

Jinja's sandbox keeps templates away from Python's internals. This one also bounds the size of
results: repetitions, sums, joined, padded, formatted and replaced texts, and the output of a
template. It does not bound time.
"""

import functools
import json
import re
from collections.abc import Callable, Iterable, Sequence

from jinja2 import filters, nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

__all__ = ["TemplateSandbox", "to_json"]

# Far more characters or elements than any prompt of a conversation has.
_MAX_REPEATED = 1 << 20
_MAX_LENGTH = 1 << 24
_MAX_BITS = 1 << 14

_Sizes = dict[str, Callable[..., int]]


def _checked(size: int, what: str) -> None:
    if size > _MAX_LENGTH:
        raise SecurityError(f"{what} of {size} characters or elements")


def _length(value: object) -> int:
    return len(value) if isinstance(value, str | bytes | list | tuple) else 0


def _nested_size(value: object) -> int:
    """Count the elements of a nested list or mapping and the characters of its texts."""
    size, elements, waiting = 0, 0, [value]
    while waiting and size <= _MAX_LENGTH:
        found = waiting.pop()
        elements += 1
        if elements > _MAX_REPEATED:
            return _MAX_LENGTH + 1
        size += 1 + (len(found) if isinstance(found, str | bytes) else 0)
        if isinstance(found, dict):
            waiting.extend(found)
            waiting.extend(found.values())
        elif isinstance(found, list | tuple):
            waiting.extend(found)
    return size


def _shown(value: object) -> object:
    """Return a value about to become text, after a check of its size."""
    if isinstance(value, list | tuple | dict):
        _checked(_nested_size(value), "the text of a value")
    return value


def _text(value: object) -> str:
    return str(_shown(value))


def to_json(value: object, encoder: json.JSONEncoder) -> str:
    """Encode a value as JSON; raises SecurityError if it is too long."""
    _checked(_nested_size(value), "the text of a value")
    _checked(_length(encoder.indent) or int(encoder.indent or 0), "indents")
    return _joined(encoder.iterencode(value))


def _joined(pieces: Iterable[str]) -> str:
    """Join with a check of the size."""
    kept, size = [], 0
    for piece in pieces:
        size += len(piece)
        _checked(size, "a text")
        kept.append(piece)
    return "".join(kept)


def _formatted_size(pattern: str, values: Iterable[object]) -> int:
    """Bound the length of a text of `%` or `str.format`: every number in it may be a width."""
    given = list(values)
    longest = max(map(_nested_size, given), default=0)
    if "*" in pattern or re.search(r"\{[^{}]*\{", pattern):
        longest += max((abs(value) for value in given if isinstance(value, int)), default=0)
    widths = sum(map(int, re.findall(r"\d+", pattern)))
    return len(pattern) + widths + (pattern.count("%") + pattern.count("{")) * longest


def _replaced_size(text: object, old: object, new: object, *_: object) -> int:
    places = len(str(text)) // max(len(str(old)), 1) + 1
    return len(str(text)) + places * len(str(new))


def _joined_size(values: Iterable[object], separator: object) -> int:
    given = list(values)
    return sum(len(_text(value)) for value in given) + len(given) * len(str(separator))


def _indented_size(text: str, width: int | str = 4, *_: object, **__: object) -> int:
    return (len(width) if isinstance(width, str) else width) * (str(text).count("\n") + 1)


# Sizes of the results of filters.
_FILTERS: _Sizes = {
    "string": _nested_size,
    "pprint": _nested_size,
    "batch": lambda values, count, *_: count,
    "center": lambda text, width=80: width,
    "format": lambda text, *args, **named: _formatted_size(str(text), [*args, *named.values()]),
    "indent": _indented_size,
    "replace": _replaced_size,
    "slice": lambda values, count, *_: count,
    "wordwrap": lambda text, width=79, breaks=True, wrapstring=None, *_, **__: (
        len(text) * len(wrapstring or "\n")
    ),
}
# Sizes of the results of methods of texts.
_METHODS: _Sizes = {
    "center": lambda text, width, *_: width,
    "expandtabs": lambda text, tabsize=8: text.count("\t") * tabsize,
    "format": lambda text, *args, **named: _formatted_size(text, [*args, *named.values()]),
    "format_map": lambda text, values: _formatted_size(text, values.values()),
    "join": lambda text, values: _joined_size(values, text),
    "ljust": lambda text, width, *_: width,
    "replace": _replaced_size,
    "rjust": lambda text, width, *_: width,
    "translate": lambda text, table: len(text) * max(map(_length, table.values()), default=1),
    "zfill": lambda text, width: width,
}


def _bounded_filter(name: str, size_of: Callable[..., int]) -> Callable[..., object]:
    known = filters.FILTERS[name]
    has_context = hasattr(known, "jinja_pass_arg")

    @functools.wraps(known)
    def run(*args: object, **named: object) -> object:
        _checked(size_of(*args[has_context:], **named), f"a result of '{name}'")
        return known(*args, **named)

    return run


@functools.wraps(filters.do_join)
def _join(
    context: nodes.EvalContext,
    values: Iterable[object],
    d: str = "",
    attribute: str | int | None = None,
) -> str:
    if attribute is not None:
        values = map(filters.make_attrgetter(context.environment, attribute), values)
    given = list(values)
    _checked(_joined_size(given, d), "a result of 'join'")
    return filters.sync_do_join(context, given, d)


class _Generator(CodeGenerator):
    """Compiles `~` to a checked sum."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802  jinja2's name
        """Call the environment's `concat`, as jinja2 calls its own."""
        self.write("environment.concat(map(environment.text, (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write(")))")


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with bounds on the results of operators, filters and methods of texts."""

    code_generator_class = _Generator
    concat = staticmethod(_joined)
    text = staticmethod(_text)
    intercepted_binops = frozenset(("*", "**", "+", "%"))

    def __init__(self, extensions: Sequence[str | type[Extension]]) -> None:
        """Make an environment that treats white space around blocks as transformers does."""
        super().__init__(
            finalize=_shown, trim_blocks=True, lstrip_blocks=True, extensions=extensions
        )
        for name, size_of in _FILTERS.items():
            self.filters[name] = _bounded_filter(name, size_of)
        self.filters["join"] = _join

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        """Refuse to repeat, add or format a sequence, or raise a number, beyond any use."""
        if operator == "**" and isinstance(right, int | float) and abs(right) > 64:
            raise SecurityError(f"{right} is too large an exponent")
        if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length()
            if bits + right.bit_length() > _MAX_BITS:
                raise SecurityError(f"a number of {bits} bits")
        if operator == "*":
            _check_repetition(left, right)
            _check_repetition(right, left)
        if operator == "+":
            _checked(_length(left) + _length(right), "a sum")
        if operator == "%" and isinstance(left, str | bytes):
            given = list(right.values()) if isinstance(right, dict) else right
            values = list(given) if isinstance(given, list | tuple) else [given]
            text = left if isinstance(left, str) else left.decode("latin-1")
            _checked(_formatted_size(text, values), "a formatted text")
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, function: object, /, *args: object, **named: object) -> object:
        """Refuse calls of a text's method that would make a far longer one."""
        method = getattr(function, "__wrapped__", function)
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(owner, str) and name in _METHODS:
            if name == "join" and args and isinstance(args[0], Iterable):
                args = (list(args[0]), *args[1:])
            # jinja2 passes variables of loops to every call.
            given = {key: value for key, value in named.items() if not key.startswith("_")}
            _checked(_METHODS[name](owner, *args, **given), f"a result of '{name}'")
        return super().call(context, function, *args, **named)


def _check_repetition(sequence: object, count: object) -> None:
    if not isinstance(sequence, str | bytes | list | tuple) or not isinstance(count, int):
        return
    if len(sequence) * count > _MAX_REPEATED:
        raise SecurityError(f"a repetition of {len(sequence)} times {count} elements")
