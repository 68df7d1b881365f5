"""A strict reader of JSON: every value is checked for its type, length and range.

A file is input from outside, so an error names the file, the field and what is wrong with it.
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

# Whole numbers of any length are legal JSON, and Python reads NaN.
_LARGEST_NUMBER = 1e300
_LONGEST_NAME = 60


class Field:
    """A value of the file with its place in it."""

    def __init__(self, value: object, name: str, error: Callable[[str], PowerInferError]) -> None:
        """Wrap a value.

        Args:
            value: as `json.loads` returns it.
            name: its place, `layers[0].hot`; empty for the whole file.
            error: makes the error to raise from what is wrong.
        """
        self._value = value
        self._name = name
        self._error = error

    @classmethod
    def parse(cls, text: str | bytes, error: Callable[[str], PowerInferError]) -> "Field":
        """Read a whole file.

        Args:
            text: JSON.
            error: makes the error to raise from what is wrong.

        Raises:
            PowerInferError: as given: it is not JSON.
        """
        try:
            return cls(json.loads(text), "", error)
        except (ValueError, RecursionError) as problem:
            raise error(_why_not_json(problem)) from None

    def __getitem__(self, key: str) -> "Field":
        """The field of an object, which must have it."""
        fields = self.fields()
        if key not in fields:
            self.fail(f"has no field {key!r}")
        return fields[key]

    def fail(self, problem: str) -> NoReturn:
        """Raise the error of this file, with this field's place in front."""
        self.refuse(f"{self._name or 'the file'} {problem}")

    def refuse(self, problem: str) -> NoReturn:
        """Raise the error of this file in the caller's words."""
        raise self._error(problem)

    def with_value(self, value: object) -> "Field":
        """Another value in the same place, such as the key of this field."""
        return Field(value, self._name, self._error)

    def is_null(self) -> bool:
        """Whether it is null."""
        return self._value is None

    def fields(self) -> dict[str, "Field"]:
        """The fields of an object, whichever it has."""
        if not isinstance(self._value, dict):
            self.fail("is not an object")
        prefix = f"{self._name}." if self._name else ""
        return {
            key: Field(item, f"{prefix}{_shown(key)}", self._error)
            for key, item in self._value.items()
        }

    def exactly(self, *names: str) -> dict[str, "Field"]:
        """The fields of an object, which must have all of these and no others."""
        fields = self.fields()
        for name in names:
            if name not in fields:
                self.fail(f"has no field {name!r}")
        for name in fields:
            if name not in names:
                self.fail(f"has an unknown field {name[:_LONGEST_NAME]!r}")
        return fields

    def items(self, most: int | None = None) -> list["Field"]:
        """The items of a list; where `most` is given, from 1 to so many."""
        value = self._value
        if not isinstance(value, list) or (most is not None and not 1 <= len(value) <= most):
            self.fail("is not a list" + ("" if most is None else f" of 1 to {most} items"))
        return [
            Field(item, f"{self._name}[{index}]", self._error) for index, item in enumerate(value)
        ]

    def text(self, longest: int | None = None) -> str:
        """A text; where `longest` is given, of at most so many characters."""
        value = self._value
        if not isinstance(value, str) or (longest is not None and len(value) > longest):
            self.fail(
                "is not a text" + ("" if longest is None else f" of at most {longest} characters")
            )
        return value

    def boolean(self) -> bool:
        """True or false."""
        if not isinstance(self._value, bool):
            self.fail("is neither true nor false")
        return self._value

    def integer(self, least: int, most: int) -> int:
        """A whole number within limits."""
        value = self._value
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            self.fail(f"is not a whole number from {least} to {most}")
        return value

    def number(self, least: float = -math.inf, most: float = math.inf) -> float:
        """A finite number within limits."""
        value = self._value
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fail("is not a number")
        if not abs(value) < _LARGEST_NUMBER or not least <= value <= most:
            self.fail(f"must be a finite number from {least:g} to {most:g}")
        return float(value)

    def number_or_null(self, least: float) -> float | None:
        """A finite number of at least so much, or null."""
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
        """A list of numbers as f64[n], n >= 1; checked together, since there may be many."""
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
        """A list of whole numbers from 0 to `most` as i64[n], n >= 1."""
        numbers = self.numbers(0, most)
        if (numbers != np.floor(numbers)).any():
            self.fail("must hold whole numbers")
        return numbers.astype(np.int64)

    def bits(self, count: int, *, what: str) -> IntArray:
        """Ascending numbers of the bits that are set, of so many, as i32[n].

        Bit n is bit n % 8 of byte n // 8, in base64. `what` they stand for is named in messages.
        """
        value, size = self._value, -(-count // 8)
        # Its length first: decoding costs memory.
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
            self.fail(f"names {what} beyond the {count} that there are")
        return np.flatnonzero(bits).astype(np.int32)


def _why_not_json(problem: ValueError | RecursionError) -> str:
    """What is wrong with a text that cannot be read as JSON, without words of the interpreter."""
    if isinstance(problem, json.JSONDecodeError):
        return f"it is not JSON (line {problem.lineno}, column {problem.colno})"
    if isinstance(problem, UnicodeDecodeError):
        return f"it is not JSON (byte {problem.start} is not UTF-8)"
    if isinstance(problem, RecursionError):
        return "it is not JSON of ours: lists or objects lie too deep inside each other"
    return "it is not JSON of ours: it has a number with thousands of digits"


def _shown(key: str) -> str:
    """A key in one line of a message, whatever a file has as one."""
    short = key[:_LONGEST_NAME]
    return short if short.isprintable() else ascii(short)
