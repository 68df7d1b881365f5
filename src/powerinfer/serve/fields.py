"""Typed access to the fields of a request; errors name the field, as OpenAI's do."""

from collections.abc import Iterator, Mapping, Sequence

from powerinfer.serve.errors import ApiError, bad_request
from powerinfer.values import JSON

__all__ = ["Fields"]

_LONGEST_SHOWN = 60


class Fields:
    """An object of a request; a field that is null counts as missing.

    Readers raise an `ApiError` if the field has another type. Those named `required` also raise it
    if the field is missing; the others return None or a default.
    """

    def __init__(self, values: Mapping[str, JSON], path: str = "") -> None:
        """Read from `values`; `path` is the object's place in the request."""
        self.values = values
        self._path = path

    def __contains__(self, name: str) -> bool:
        """Return whether the field is there and not null."""
        return self.values.get(name) is not None

    def path(self, name: str) -> str:
        """Place of a field in the request, such as `messages[0].content`."""
        return f"{self._path}.{name}" if self._path else name

    def error(self, name: str, wanted: str, code: str = "invalid_type") -> ApiError:
        """Build the error for a field that is not as `wanted`."""
        shown = repr(self.values.get(name))[:_LONGEST_SHOWN]
        return self.fault(name, f" must be {wanted}, got {shown}", code)

    def fault(self, name: str, text: str, code: str = "invalid_value") -> ApiError:
        """Build any error about a field; `text` follows the field's path in the message."""
        path = self.path(name)
        return bad_request(path + text, path, code)

    def required(self, name: str) -> JSON:
        """Read a value of any type but null."""
        value = self.values.get(name)
        if value is None:
            raise self.fault(name, " is missing", "missing_required_parameter")
        return value

    def required_text(self, name: str) -> str:
        """Read a text."""
        value = self.required(name)
        if not isinstance(value, str):
            raise self.error(name, "a text")
        return value

    def text(self, name: str) -> str | None:
        """Read a text."""
        return self.required_text(name) if name in self else None

    def texts(self, name: str) -> list[str] | None:
        """Read a text or a list of texts, as a list."""
        value = self.values.get(name)
        if value is None:
            return None
        listed = value if isinstance(value, list) else [value]
        texts = [each for each in listed if isinstance(each, str)]
        if len(texts) < len(listed):
            raise self.error(name, "a text or a list of texts")
        return texts

    def required_choice(self, name: str, allowed: Sequence[str]) -> str:
        """Read a text that must be one of those allowed."""
        value = self.required_text(name)
        if value not in allowed:
            raise self.error(name, f"one of {', '.join(allowed)}", "invalid_value")
        return value

    def choice(self, name: str, allowed: Sequence[str]) -> str | None:
        """Read a text that must be one of those allowed."""
        return self.required_choice(name, allowed) if name in self else None

    def switch(self, name: str, *, default: bool = False) -> bool:
        """Read true or false."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(name, "true or false")
        return value

    def number(self, name: str, low: float, high: float) -> float | None:
        """Read a number within bounds."""
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(name, "a number")
        self._check_range(name, value, low, high, "decimal")
        return float(value)

    def whole(self, name: str, low: int, high: int) -> int | None:
        """Read a whole number within bounds."""
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(name, "a whole number")
        self._check_range(name, value, low, high, "integer")
        return value

    def items(self, name: str) -> list[JSON] | None:
        """Read a list."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, list):
            raise self.error(name, "a list")
        return value

    def required_object(self, name: str) -> "Fields":
        """Read an object."""
        value = self.required(name)
        if not isinstance(value, dict):
            raise self.error(name, "an object")
        return Fields(value, self.path(name))

    def object(self, name: str) -> "Fields | None":
        """Read an object."""
        return self.required_object(name) if name in self else None

    def objects(self, name: str) -> "Iterator[Fields]":
        """Read the objects of a list; a missing list has none."""
        for index, value in enumerate(self.items(name) or ()):
            path = f"{self.path(name)}[{index}]"
            if not isinstance(value, dict):
                shown = repr(value)[:_LONGEST_SHOWN]
                raise bad_request(f"{path} must be an object, got {shown}", path, "invalid_type")
            yield Fields(value, path)

    def refuse(
        self, *names: str, reason: str = "is not supported", may_be_empty: bool = True
    ) -> None:
        """Refuse fields that this server ignores although they should change the answer.

        Empty values and false are harmless if `may_be_empty`.
        """
        for name in names:
            is_harmless = may_be_empty and self.values.get(name) in ("", False, [], {})
            if name in self and not is_harmless:
                raise self.fault(name, f" {reason}", "unsupported_parameter")

    def _check_range(self, name: str, value: float, low: float, high: float, kind: str) -> None:
        if value < low:
            raise self.error(name, f"at least {_shown(low)}", f"{kind}_below_min_value")
        if value > high:
            raise self.error(name, f"at most {_shown(high)}", f"{kind}_above_max_value")


def _shown(limit: float) -> str:
    """Format a limit; whole numbers keep all digits, so that clients can send them."""
    return str(limit) if isinstance(limit, int) else f"{limit:g}"
