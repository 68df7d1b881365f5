"""A strict reader of JSON: every value is checked for its type, length and range.

Files are untrusted input, so errors name the file, the field and the problem.
"""

import base64
import json
import math
from collections.abc import Callable
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from powerinfer.errors import PowerInferError
from powerinfer.values import IntArray

__all__ = ["Field"]

# JSON allows integers of any length, and Python reads NaN.
_LARGEST_NUMBER = 1e300
_LONGEST_NAME = 60


class Field:
    """A value of a file and its path in it.

    Its methods check the value, or raise the error of the file.
    """

    def __init__(self, value: object, name: str, error: Callable[[str], PowerInferError]) -> None:
        """Wrap a value.

        Args:
            value: result of `json.loads`.
            name: path such as `layers[0].hot`; empty for the whole file.
            error: makes the error to raise from the description of a problem.
        """
        self._value = value
        self._name = name
        self._error = error

    @classmethod
    def parse(cls, text: str | bytes, error: Callable[[str], PowerInferError]) -> "Field":
        """Parse a whole file of JSON."""
        try:
            return cls(json.loads(text), "", error)
        except (ValueError, RecursionError) as problem:
            raise error(_why_not_json(problem)) from None

    def __getitem__(self, key: str) -> "Field":
        """Return the field of an object, which must have it."""
        fields = self.fields()
        if key not in fields:
            self.fail(f"has no field {key!r}")
        return fields[key]

    def fail(self, problem: str) -> NoReturn:
        """Raise the error of this file, prefixed with the path of this field."""
        self.refuse(f"{self._name or 'the file'} {problem}")

    def refuse(self, problem: str) -> NoReturn:
        """Raise the error of this file."""
        raise self._error(problem)

    def with_value(self, value: object) -> "Field":
        """Return another value at the same path, such as the key of this field."""
        return Field(value, self._name, self._error)

    def is_null(self) -> bool:
        """Return whether the value is null."""
        return self._value is None

    def fields(self) -> dict[str, "Field"]:
        """Return the fields of an object."""
        if not isinstance(self._value, dict):
            self.fail("is not an object")
        prefix = f"{self._name}." if self._name else ""
        return {
            key: Field(item, f"{prefix}{_shown(key)}", self._error)
            for key, item in self._value.items()
        }

    def exactly(self, *names: str) -> dict[str, "Field"]:
        """Return the fields of an object, which must have exactly these."""
        fields = self.fields()
        for name in names:
            if name not in fields:
                self.fail(f"has no field {name!r}")
        for name in fields:
            if name not in names:
                self.fail(f"has an unknown field {name[:_LONGEST_NAME]!r}")
        return fields

    def items(self, most: int | None = None) -> list["Field"]:
        """Return the items of a list; with `most`, of 1 to `most` items."""
        value = self._value
        if not isinstance(value, list) or (most is not None and not 1 <= len(value) <= most):
            self.fail("is not a list" + ("" if most is None else f" of 1 to {most} items"))
        return [
            Field(item, f"{self._name}[{index}]", self._error) for index, item in enumerate(value)
        ]

    def text(self, longest: int | None = None) -> str:
        """Return a string; with `longest`, of at most that many characters."""
        value = self._value
        if not isinstance(value, str) or (longest is not None and len(value) > longest):
            self.fail(
                "is not a text" + ("" if longest is None else f" of at most {longest} characters")
            )
        return value

    def boolean(self) -> bool:
        """Return a boolean."""
        if not isinstance(self._value, bool):
            self.fail("is neither true nor false")
        return self._value

    def integer(self, least: int, most: int) -> int:
        """Return an integer within limits."""
        value = self._value
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.fail(f"is not a whole number from {least} to {most}")
        return value

    def number(self, least: float = -math.inf, most: float = math.inf) -> float:
        """Return a finite number within limits."""
        value = self._value
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail("is not a number")
        if not abs(value) < _LARGEST_NUMBER or not least <= value <= most:
            self.fail(f"must be a finite number from {least:g} to {most:g}")
        return float(value)

    def number_or_null(self, least: float) -> float | None:
        """Return a finite number of at least `least`, or None for null."""
        value = self._value
        if value is None:
            return None
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not least <= value < _LARGEST_NUMBER
        ):
            self.fail(f"is neither null nor a finite number of at least {least:g}")
        return float(value)

    def numbers(self, least: float, most: float) -> npt.NDArray[np.float64]:
        """Return a list of numbers as f64[n], n >= 1; vectorised, since there may be many."""
        value = self._value
        if not isinstance(value, list) or not value:
            self.fail("is not a list of numbers")
        if not all(type(item) in (int, float) and abs(item) < _LARGEST_NUMBER for item in value):
            self.fail("holds something that is not a finite number")
        numbers = np.array(value, np.float64)
        if numbers.min() < least or numbers.max() > most:
            self.fail(f"must hold numbers from {least:g} to {most:g}")
        return numbers

    def counts(self, most: int) -> npt.NDArray[np.int64]:
        """Return a list of integers from 0 to `most` as i64[n], n >= 1."""
        numbers = self.numbers(0, most)
        if (numbers != np.floor(numbers)).any():
            self.fail("must hold whole numbers")
        return numbers.astype(np.int64)

    def bits(self, count: int, *, what: str) -> IntArray:
        """Return the ascending indices of the set bits among `count`, as i32[n].

        Bit n is bit n % 8 of byte n // 8, in base64. Messages call the bits `what`.
        """
        value, size = self._value, -(-count // 8)
        # The length first: decoding takes memory.
        if not isinstance(value, str) or len(value) != -(-size // 3) * 4:
            self.fail(f"is not base64 of {size} bytes")
        try:
            decoded = base64.b64decode(value, validate=True)
        except ValueError:
            self.fail("is not base64")
        if len(decoded) != size:
            self.fail(f"is not base64 of {size} bytes")
        bits = np.unpackbits(np.frombuffer(decoded, np.uint8), bitorder="little")
        if bits[count:].any():
            self.fail(f"names {what} beyond the {count} that exist")
        return np.flatnonzero(bits).astype(np.int32)


def _why_not_json(problem: ValueError | RecursionError) -> str:
    """Describe a JSON error without the interpreter's words."""
    if isinstance(problem, json.JSONDecodeError):
        return f"it is not JSON (line {problem.lineno}, column {problem.colno})"
    if isinstance(problem, UnicodeDecodeError):
        return f"it is not JSON (byte {problem.start} is not UTF-8)"
    if isinstance(problem, RecursionError):
        return "it is not JSON that can be read: lists or objects are nested too deeply"
    return "it is not JSON that can be read: it has a number with thousands of digits"


def _shown(key: str) -> str:
    """Shorten and escape a key for a message of one line."""
    short = key[:_LONGEST_NAME]
    return short if short.isprintable() else ascii(short)
