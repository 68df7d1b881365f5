"""Typed reading of a checkpoint's `config.json`; errors name file and key."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from powerinfer.errors import CheckpointError, UnsupportedError

__all__ = ["CheckpointConfig"]

# Limits of sizes that determine allocations, far above any published model.
_LARGEST = {
    "num_hidden_layers": 1 << 10,
    "num_local_experts": 1 << 12,
    "head_dim": 1 << 20,
    "hidden_size": 1 << 20,
}
_LARGEST_INTEGER = 1 << 31


@dataclass(frozen=True)
class CheckpointConfig:
    """Values of a `config.json` under the names of Llama's configuration; null counts as absent.

    Attributes:
        path: file, and the key of a part of it, for messages.
        names: Llama's name of a value to the names used by the family.
    """

    path: Path | str
    values: Mapping[str, object]
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """Check for a value."""
        return self._found(name)[1] is not None

    def integer(self, name: str, default: int | None = None) -> int:
        """Return a positive integer; a missing one without default is an error."""
        key, value = self._found(name, default)
        largest = _LARGEST.get(name, _LARGEST_INTEGER)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= largest:
            raise self.error(key, f"expected an integer from 1 to {largest}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Return a finite number; a missing one without default is an error."""
        key, value = self._found(name, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        # This form also rejects NaN and integers beyond the largest float.
        if not is_number or not abs(value) <= sys.float_info.max:  # type: ignore[arg-type]
            raise self.error(key, "expected a number")
        return float(value)  # type: ignore[arg-type]

    def flag(self, name: str, *, default: bool) -> bool:
        """Return a boolean."""
        key, value = self._found(name, default)
        if not isinstance(value, bool):
            raise self.error(key, "expected true or false")
        return value

    def string(self, name: str, default: str | None = None) -> str:
        """Return a string; a missing one without default is an error."""
        key, value = self._found(name, default)
        if not isinstance(value, str):
            raise self.error(key, "expected a string")
        return value

    def part(self, name: str) -> "CheckpointConfig":
        """Return the values of a nested object; empty if it is missing."""
        key, value = self._found(name, {})
        if not isinstance(value, dict):
            raise self.error(key, "expected an object")
        return CheckpointConfig(f"{self.path}: {key}", value)

    def items(self, name: str, kind: type[object], count: int) -> list[object]:
        """Return a list of `count` values of one type; empty if it is missing."""
        key, value = self._found(name, [])
        if not isinstance(value, list) or not all(isinstance(each, kind) for each in value):
            raise self.error(key, f"expected a list of {kind.__name__}")
        if value and len(value) != count:
            raise CheckpointError(
                f"{self.path}: key {key} has {len(value)} entries; expected {count}"
            )
        return value

    def error(self, key: str, problem: str) -> CheckpointError:
        """Build the error for a key, showing its value."""
        value = self.values.get(key)
        got = "is missing" if value is None else f"is {value!r:.60}"
        return CheckpointError(f"{self.path}: key {key} {got}; {problem}")

    def unsupported(self, key: str, wanted: str) -> UnsupportedError:
        """Build the error for a valid but unsupported value."""
        return UnsupportedError(
            f"{self.path}: key {key} is {self.values.get(key)!r:.60}; supported: {wanted}"
        )

    def _found(self, name: str, default: object = None) -> tuple[str, object]:
        """Look a value up; returns its key and the value or default."""
        keys = (*self.names.get(name, ()), name)
        for key in keys:
            value = self.values.get(key)
            if value is not None:
                return key, value
        return keys[0], default
