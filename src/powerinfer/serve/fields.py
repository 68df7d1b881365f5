"""Fields of a request, read one by one; errors name the field, as OpenAI's do."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from powerinfer.serve.errors import ApiError, bad_request

__all__ = ["Fields"]

_LONGEST_SHOWN = 60


class Fields:
    """An object of a request; a field that is null counts as missing."""

    def __init__(self, values: Mapping[str, Any], path: str = "") -> None:
        """Read from `values`; `path` is where the object stands in the request."""
        self.values = values
        self._path = path

    def __contains__(self, name: str) -> bool:
        """Whether there is such a field."""
        return self.values.get(name) is not None

    def path(self, name: str) -> str:
        """Where a field stands in the request, such as `messages[0].content`."""
        return f"{self._path}.{name}" if self._path else name

    def error(self, name: str, wanted: str, code: str = "invalid_type") -> ApiError:
        """The error for a field that is not as wanted."""
        shown = repr(self.values.get(name))[:_LONGEST_SHOWN]
        path = self.path(name)
        return bad_request(f"{path} must be {wanted}, got {shown}", path, code)

    def required(self, name: str) -> Any:
        """A value of any type.

        Raises:
            ApiError: the field is missing.
        """
        value = self.values.get(name)
        if value is None:
            path = self.path(name)
            raise bad_request(f"{path} is missing", path, "missing_required_parameter")
        return value

    def text(self, name: str) -> str | None:
        """A text; None if it is missing."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, str):
            raise self.error(name, "a text")
        return value

    def switch(self, name: str, *, default: bool = False) -> bool:
        """True or false."""
        value = self.values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(name, "true or false")
        return value

    def number(self, name: str, low: float, high: float) -> float | None:
        """A number within bounds; None if it is missing."""
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(name, "a number")
        self._check_range(name, value, low, high, "decimal")
        return float(value)

    def whole(self, name: str, low: int, high: int) -> int | None:
        """A whole number within bounds; None if it is missing."""
        value = self.values.get(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(name, "a whole number")
        self._check_range(name, value, low, high, "integer")
        return value

    def choice(self, name: str, allowed: Sequence[str]) -> str | None:
        """One of some texts; None if it is missing."""
        value = self.text(name)
        if value is not None and value not in allowed:
            raise self.error(name, f"one of {', '.join(allowed)}", "invalid_value")
        return value

    def items(self, name: str) -> list[Any] | None:
        """A list; None if it is missing."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, list):
            raise self.error(name, "a list")
        return value

    def object(self, name: str) -> "Fields | None":
        """An object; None if it is missing."""
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.error(name, "an object")
        return Fields(value, self.path(name))

    def objects(self, name: str) -> "Iterator[Fields]":
        """The objects of a list; none if it is missing."""
        for index, value in enumerate(self.items(name) or ()):
            path = f"{self.path(name)}[{index}]"
            if not isinstance(value, dict):
                shown = repr(value)[:_LONGEST_SHOWN]
                raise bad_request(f"{path} must be an object, got {shown}", path, "invalid_type")
            yield Fields(value, path)

    def refuse(
        self, *names: str, reason: str = "is not supported", may_be_empty: bool = True
    ) -> None:
        """Refuse fields that would change the answer if they did something.

        Args:
            names: of the fields.
            reason: for messages.
            may_be_empty: empty ones and false do nothing.

        Raises:
            ApiError: one of them is there and says something.
        """
        for name in names:
            is_harmless = may_be_empty and self.values.get(name) in ("", False, [], {})
            if name in self and not is_harmless:
                path = self.path(name)
                raise bad_request(f"{path} {reason}", path, "unsupported_parameter")

    def _check_range(self, name: str, value: float, low: float, high: float, kind: str) -> None:
        if value < low:
            raise self.error(name, f"at least {_shown(low)}", f"{kind}_below_min_value")
        if value > high:
            raise self.error(name, f"at most {_shown(high)}", f"{kind}_above_max_value")


def _shown(limit: float) -> str:
    """All digits of whole numbers: clients are to be able to send them."""
    return str(limit) if isinstance(limit, int) else f"{limit:g}"
