"""Readers of JSON, TOML, CSV and key-value text, for text that models and tools write."""

import csv
import json
import math
import re
import tomllib
from collections.abc import Callable

from powerinfer.orchestra.primitives.primitive import PrimitiveError
from powerinfer.values import JSON

__all__ = ["FORMATS", "dump", "encodable", "parse", "read_json"]

LONGEST_TEXT = 200_000
"""Characters; readers of longer texts would hold up the other subtasks."""

# Linear in the text, whatever it is: no two repetitions that can match the same characters.
_FENCE = re.compile(r"```[^\n`]*\n(?P<text>.*?)```", re.DOTALL)
_WHOLE = re.compile(r"-?(0|[1-9]\d{0,17})")
_DECIMAL = re.compile(r"-?(0|[1-9]\d*)\.\d+([eE][+-]?\d{1,2})?")
_INSTRUCTION = re.compile(r"(parse|read|convert)\b[^:\n]{0,80}:", re.IGNORECASE)
_LONGEST_KEY = 100
_DELIMITERS = (",", "\t", ";", "|")


def parse(text: str, wanted: str | None = None) -> JSON:
    """Read structured text.

    Args:
        text: the structure alone, in a fence of backticks, or below a line of other words.
        wanted: the one of `FORMATS` to try first.

    Raises:
        PrimitiveError: it is in none of these formats, or is too long or nested too deeply.
    """
    if len(text) > LONGEST_TEXT:
        raise PrimitiveError(f"{len(text):,} characters; at most {LONGEST_TEXT:,} are parsed")
    readers = {wanted: FORMATS[wanted], **FORMATS} if wanted else FORMATS
    for candidate in _candidates(text):
        for read in readers.values():
            try:
                return read(candidate)
            except ValueError:
                continue
            except RecursionError:
                raise PrimitiveError("the text is nested too deeply") from None
    raise PrimitiveError(f"no {', '.join(readers)} in this text: {text.strip()[:80]!r}")


def read_json(text: str) -> JSON:
    """Read strict JSON: no NaN, no number beyond a float, no key twice in an object.

    Raises:
        ValueError: it is not.
        RecursionError: it is nested too deeply.
    """
    value: JSON = _DECODER.decode(text)
    return value


def dump(value: JSON) -> str:
    """Write a value as JSON in one line that every encoder takes.

    Raises:
        PrimitiveError: it is nested too deeply.
    """
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise PrimitiveError("the text is nested too deeply") from None
    return encodable(text)


def encodable(text: str) -> str:
    """Replace halves of surrogate pairs, which escapes of JSON can name and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode()


def _candidates(text: str) -> list[str]:
    if fence := _FENCE.search(text):
        return [fence["text"].strip()]
    if instruction := _INSTRUCTION.match(text.lstrip()):
        text = text.lstrip()[instruction.end() :]
    _, _, below = text.partition("\n")
    return [part for part in (text.strip(), below.strip()) if part]


def _object(pairs: list[tuple[str, JSON]]) -> JSON:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _refuse(constant: str) -> JSON:
    raise ValueError(f"{constant} is not JSON")


def _finite(digits: str) -> float:
    if not math.isfinite(number := float(digits)):
        raise ValueError(f"{digits[:40]} is beyond a float")
    return number


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_refuse, parse_float=_finite)


def _json(text: str) -> JSON:
    """JSON that is the text, or the first object or list in it."""
    try:
        return read_json(text)
    except ValueError:
        # A list in prose is too often a footnote, `[1]`; an object never is.
        start = text.index("{") if "{" in text else text.index("[")
        value: JSON = _DECODER.raw_decode(text, start)[0]
        if value in ([], {}):
            raise
        return value


def _toml(text: str) -> JSON:
    if "=" not in text:
        raise ValueError("names of tables alone")  # Which any word in brackets is.
    found = tomllib.loads(text)
    value: JSON = json.loads(json.dumps(found, default=str, allow_nan=False))
    return value


def _csv(text: str) -> JSON:
    """A table with a line of names: a list of objects."""
    for delimiter in _DELIMITERS:
        try:
            rows = [row for row in csv.reader(text.splitlines(), delimiter=delimiter) if row]
        except csv.Error as error:
            raise ValueError(str(error)) from None
        names = [name.strip() for name in rows[0]] if rows else []
        is_table = len(rows) > 1 and len(names) > 1 and all(len(row) == len(names) for row in rows)
        if is_table and len(set(names)) == len(names) and all(names):
            return [dict(zip(names, map(_scalar, row), strict=True)) for row in rows[1:]]
    raise ValueError("not a table")


def _key_value(text: str) -> JSON:
    """Lines of `key: value` or `key = value`; of a single line, its parts between semicolons."""
    lines = [line for line in text.splitlines() if line.strip()]
    parts = re.split(r"[;,]", lines[0]) if len(lines) == 1 else lines
    pairs = [re.split("[:=]", part, maxsplit=1) for part in parts if part.strip()]
    if not pairs or not all(len(pair) == 2 and _is_key(pair[0]) for pair in pairs):
        raise ValueError("a line is no pair")
    return _object([(key.strip(), _scalar(value)) for key, value in pairs])


def _is_key(text: str) -> bool:
    return 0 < len(text.strip()) <= _LONGEST_KEY


def _scalar(text: str) -> JSON:
    """A number where no digit is lost by making it one; `007` stays text."""
    text = text.strip()
    if _WHOLE.fullmatch(text) and text != "-0":
        return int(text)
    if _DECIMAL.fullmatch(text) and len(text) <= 17:
        return float(text)
    return {"true": True, "false": False, "null": None}.get(text, text)


FORMATS: dict[str, Callable[[str], JSON]] = {
    "json": _json,
    "toml": _toml,
    "csv": _csv,
    "key-value": _key_value,
}
"""Readers by format, in the order in which they are tried; each raises ValueError."""
