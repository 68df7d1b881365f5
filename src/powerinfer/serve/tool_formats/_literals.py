"""Arguments that are not written as JSON: Python's literals, and plain text that a schema types."""

import json
import re
from collections.abc import Collection
from typing import NoReturn

from powerinfer.serve.tool_formats._json import as_utf8
from powerinfer.serve.tool_formats._schemas import types_of
from powerinfer.values import JSON

__all__ = ["LiteralEnd", "json_text", "read_literal", "typed_literal", "typed_text"]

# A quotation mark ends a string only before what can follow one: models forget to escape others.
_STRING = r"""(?:[^{0}\\]|\\.|{0}(?!\s*(?:[\])}},:]|\Z)))*+{0}"""
_TOKEN = re.compile(
    rf"""\s*(?:("{_STRING.format('"')}|'{_STRING.format("'")})"""
    r"|([-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?)(?!\w)|(\w+)|([][(){},:]))",
    re.DOTALL,
)
_WORDS = {word: word for word in ("true", "false", "null")}
_WORDS |= {"True": "true", "False": "false", "None": "null"}
_SIGNS = {"(": "[", ")": "]", ",": ", ", ":": ": "}
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-7]{1,3}|.)", re.DOTALL)
_ESCAPES: dict[str, str] = {char: char for char in "\"'\\/"} | {"\n": ""}
_ESCAPES |= zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True)
_BEHIND = ")]},:"


class LiteralEnd:
    """Finds the end of a literal: the comma or closing bracket behind it."""

    def __init__(self) -> None:
        self._depth = 0
        self._quote = ""
        self._is_escaped = self._may_be_closed = False

    def take(self, char: str) -> bool:
        """Offer the next character; False if it does not belong to the literal."""
        if self._may_be_closed and not char.isspace():
            self._may_be_closed = False
            if char in _BEHIND:
                self._quote = ""
        if self._quote:
            self._may_be_closed = self._may_be_closed or (
                char == self._quote and not self._is_escaped
            )
            self._is_escaped = char == "\\" and not self._is_escaped
        elif char in "\"'":
            self._quote = char
        elif char in "[{(":
            self._depth += 1
        elif char in ")]},":
            if self._depth == 0:
                return False
            self._depth -= char != ","
        return True


def json_text(text: str) -> str:
    """Write a text as JSON."""
    return json.dumps(text, ensure_ascii=False)


def read_literal(text: str) -> tuple[str, JSON] | None:
    """Read a literal of Python or JSON, or a mixture, as JSON and its value; None if it is none."""
    value = _decoded(text)
    if value is not None:
        return text.strip(), *value
    written: list[str] = []
    place, text = 0, text.rstrip()
    while place < len(text):
        found = _TOKEN.match(text, place)
        token = None if found is None else _converted(*found.groups())
        if found is None or token is None:
            return None
        # Python allows a comma at the end of a list.
        if token in ("]", "}") and written and written[-1] == ", ":
            written.pop()
        written.append(token)
        place = found.end()
    # Numbers must not grow together.
    value = _decoded(" ".join(written))
    return None if value is None else ("".join(written), *value)


def _decoded(text: str) -> tuple[JSON] | None:
    """Decode JSON, which may be null; None if it is not valid."""
    try:
        return (json.loads(text, parse_constant=_refuse),)
    except (ValueError, RecursionError):
        return None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _converted(string: str | None, number: str | None, word: str | None, sign: str) -> str | None:
    """Convert a token to JSON."""
    if string is not None:
        plain = _ESCAPE.sub(_unescaped, string[1:-1])
        # Escapes may spell the halves of a pair.
        joined = plain.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return json_text(joined)
    if number is not None:
        try:
            return str(int(number) if number.lstrip("+-").isdecimal() else float(number))
        except ValueError:  # thousands of digits
            return None
    return _WORDS.get(word) if word is not None else _SIGNS.get(sign, sign)


def _unescaped(found: re.Match[str]) -> str:
    code: str = found[1]
    if code in _ESCAPES:
        return _ESCAPES[code]
    if code[0] in "xuU" and len(code) > 1:
        value = int(code[1:], 16)
    elif set(code) <= set("01234567"):
        value = int(code, 8)
    else:
        return found[0]
    return chr(value) if value < 0x110000 else "\ufffd"


def typed_text(text: str, types: Collection[str]) -> str:
    """Convert the plain text of an argument to JSON of one of the types, else to a string."""
    found = None if set(types) == {"string"} else read_literal(text)
    if found is not None and not isinstance(found[1], str) and types_of(found[1]) & set(types):
        return found[0]
    if found is not None and isinstance(found[1], str) and "string" not in types:
        return typed_text(as_utf8(found[1]), types)
    return json_text(text)


def typed_literal(text: str, types: Collection[str]) -> str:
    """Convert a literal to JSON, of one of the types if possible; what is none is a string."""
    found = read_literal(text)
    if found is None:
        return json_text(text)
    if isinstance(found[1], str):
        return found[0] if "string" in types else typed_text(as_utf8(found[1]), types)
    is_wanted = types_of(found[1]) & set(types) or "string" not in types
    return found[0] if is_wanted else json_text(text)
