"""Streamed JSON: finds the end of a value, and reads the objects of calls."""

import json
from collections.abc import Callable, Collection
from typing import TypeAlias

__all__ = ["CallObject", "JsonValue", "as_utf8"]

_SPACE = " \t\r\n"
_State: TypeAlias = "Callable[[str], _State]"


class JsonValue:
    """Follows a value to its end, without checking what is inside."""

    def __init__(self) -> None:
        self.is_over = False
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    def take(self, char: str) -> bool:
        """Offer the next character; False if it does not belong to the value, which is over."""
        if self._in_string:
            self._take_in_string(char)
            return True
        if char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif self._depth == 0 and char in f",]}}{_SPACE}":
            self.is_over = True
            return False
        elif char in "}]":
            self._depth -= 1
            self.is_over = self._depth == 0
        return True

    def _take_in_string(self, char: str) -> None:
        if self._is_escaped:
            self._is_escaped = False
        elif char == "\\":
            self._is_escaped = True
        elif char == '"':
            self._in_string = False
            self.is_over = self._depth == 0


class CallObject:
    """Reads a streamed `{"name": ..., "arguments": {...}}`, with its keys in any order.

    Attributes:
        is_done: the object was read to its end.
        is_broken: it is no such object; `raw` ends with the character that shows it.
        is_begun: for whoever passes the call on, whether its beginning was.
    """

    def __init__(
        self, argument_keys: Collection[str], other_keys: Collection[str] | None = None
    ) -> None:
        """Start before the object.

        Args:
            other_keys: further keys that a call may have; None allows all.
        """
        self.name: str | None = None
        self.is_done = self.is_broken = self.is_begun = False
        self._argument_keys = argument_keys
        self._other_keys = other_keys
        self._raw: list[str] = []
        self._key = ""
        self._value = JsonValue()
        self._text: list[str] = []
        self._new: list[str] = []
        self._has_arguments = False
        self._state: _State = self._before

    @property
    def is_over(self) -> bool:
        """Nothing more can be read."""
        return self.is_done or self.is_broken

    @property
    def raw(self) -> str:
        """All text that was read."""
        return "".join(self._raw)

    def push(self, text: str) -> int:
        """Read on; returns the number of characters used: all, unless the object is over."""
        for used, char in enumerate(text):
            if self.is_over:
                return used
            self._raw.append(char)
            self._state = self._state(char)
        return len(text)

    def take_arguments(self) -> str:
        """Take the JSON text of the arguments read since the last call; empty before the name."""
        if self.name is None:
            return ""
        new, self._new = "".join(self._new), []
        return new

    def _before(self, char: str) -> _State:
        if char in _SPACE:
            return self._before
        return self._key_or_end if char == "{" else self._broken()

    def _key_or_end(self, char: str) -> _State:
        if char in _SPACE or char == ",":
            return self._key_or_end
        if char == "}":
            return self._done()
        self._begin()
        return self._in_key(char) if char == '"' else self._broken()

    def _in_key(self, char: str) -> _State:
        self._value.take(char)
        self._text.append(char)
        if not self._value.is_over:
            return self._in_key
        key = _decoded("".join(self._text))
        if not isinstance(key, str) or not self._is_known(key):
            return self._broken()
        self._key = key
        return self._colon

    def _is_known(self, key: str) -> bool:
        others = self._other_keys
        return others is None or key == "name" or key in self._argument_keys or key in others

    def _colon(self, char: str) -> _State:
        if char in _SPACE:
            return self._colon
        self._begin()
        return self._before_value if char == ":" else self._broken()

    def _before_value(self, char: str) -> _State:
        if char in _SPACE:
            return self._before_value
        return self._broken() if char in ",}]" else self._in_value(char)

    def _in_value(self, char: str) -> _State:
        is_taken = self._value.take(char)
        if is_taken:
            self._text.append(char)
            if self._is_streamed:
                self._new.append(char)
        if not self._value.is_over:
            return self._in_value
        if not self._ends_well():
            return self._broken()
        return self._key_or_end if is_taken else self._key_or_end(char)

    def _begin(self) -> None:
        self._value, self._text = JsonValue(), []

    @property
    def _is_streamed(self) -> bool:
        """The value is an object of arguments, which is passed on as it arrives."""
        return self._key in self._argument_keys and self._text[0] == "{"

    def _ends_well(self) -> bool:
        """Store a value that was read to its end; False for an invalid name."""
        text = "".join(self._text)
        if self._key == "name":
            name = _decoded(text)
            self.name = as_utf8(name) if isinstance(name, str) and name else None
            return self.name is not None
        if self._key in self._argument_keys:
            if not self._is_streamed:
                self._new.append(_as_arguments(text))
            self._has_arguments = True
        return True

    def _done(self) -> _State:
        self.is_done = True
        if not self._has_arguments:
            self._new.append("{}")
        return self._broken

    def _broken(self, _: str = "") -> _State:
        self.is_broken = not self.is_done
        return self._broken


def as_utf8(text: str) -> str:
    """Replace unpaired surrogates, which cannot be sent, with question marks."""
    return text.encode("utf-8", "replace").decode()


def _decoded(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _as_arguments(text: str) -> str:
    """Convert arguments that are no object: some models write a string of JSON, or null."""
    value = _decoded(text)
    if value is None:
        return "{}"
    return as_utf8(value) if isinstance(value, str) and _decoded(value) is not None else text
