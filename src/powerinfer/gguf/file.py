"""An open model: metadata with typed getters, and tensors as views of the mapped file(s)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from powerinfer.errors import GGUFError
from powerinfer.gguf import keys
from powerinfer.gguf.value_types import MetadataValue, ValueType, shown
from powerinfer.quant import get_format, type_of_name

__all__ = ["GGUFFile", "Tensor"]

D = TypeVar("D")
T = TypeVar("T")

# The default of a required key; of any type, so that it adds none to the results of the getters.
_REQUIRED: Any = object()


@dataclass(frozen=True, eq=False)
class Tensor:
    """One tensor of a file.

    Attributes:
        shape: outermost dimension first (the reverse of the file's order).
        format: lower-case type name; not necessarily one we compute with.
        data: u8[num_bytes], a read-only view of the mapped file; keeps the mapping alive.
        file: the file that holds it; of a split model the part.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    data: npt.NDArray[np.uint8] = field(repr=False)
    file: Path

    @property
    def num_elements(self) -> int:
        """Product of the dimensions."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of data in the file."""
        return len(self.data)

    @property
    def rows(self) -> npt.NDArray[np.uint8]:
        """View of the data as u8[num_rows, row_bytes]: one row per vector of the last dimension."""
        num_rows = math.prod(self.shape[:-1])
        row_bytes = len(self.data) // num_rows if num_rows else 0
        return self.data.reshape(num_rows, row_bytes)

    def decode(self) -> npt.NDArray[np.float32]:
        """Decode to f32[shape], newly allocated.

        Raises:
            UnsupportedError: the type is not implemented; lists those that are.
        """
        return get_format(self.format).decode(self.data).reshape(self.shape)

    def numbers(self) -> npt.NDArray[np.generic]:
        """View plain numbers (i8 i16 i32 i64 f16 f32 f64) in their own type: dtype[shape].

        Raises:
            GGUFError: the tensor holds blocks, not plain numbers.
        """
        block = type_of_name(self.format)
        if block is None or block.block_size != 1 or self.format == "bf16":
            raise GGUFError(
                f"{self.file}: tensor {shown(self.name)}: {self.format} is not a plain number type"
            )
        return self.data.view(f"<{self.format[0]}{block.block_bytes}").reshape(self.shape)


@dataclass(frozen=True, eq=False)
class GGUFFile:
    """An open model: one GGUF file, or all parts of a split one.

    The getters raise `GGUFError` for a value of another type, and for an absent key where no
    default is given.

    Attributes:
        magic: ``GGUF``, or ``PWRI`` for PowerInfer's container.
        version: 2 or 3.
        metadata: values by key; arrays of numbers are read-only numpy arrays, of strings lists.
        tensors: by name, in file order.
        types: stored type by key; for arrays the type of the elements.
        num_bytes: total size of the files.
    """

    paths: tuple[Path, ...]
    magic: str
    version: int
    metadata: dict[str, MetadataValue]
    tensors: dict[str, Tensor]
    types: dict[str, ValueType]
    num_bytes: int

    @property
    def path(self) -> Path:
        """First file; names the model in messages."""
        return self.paths[0]

    @property
    def missing_weights(self) -> str | None:
        """Message about a file without weights, such as a vocabulary; None for a model."""
        if self.tensors:
            return None
        content = "a vocabulary" if keys.TOKENS in self.metadata else "metadata"
        return f"the file has only {content}, no weights"

    def tensor(self, name: str) -> Tensor:
        """Return a tensor that must exist.

        Raises:
            GGUFError: no tensor has this name.
        """
        try:
            return self.tensors[name]
        except KeyError:
            raise GGUFError(f"{self.path}: tensor {shown(name)} is missing") from None

    def get_int(
        self, key: str, default: D = _REQUIRED, *, minimum: int = 0, maximum: int = 2**63 - 1
    ) -> int | D:
        """Return an integer, which must be within [minimum, maximum]."""
        value = self._get(key, default, int, "an integer")
        if isinstance(value, int) and value is not default and not minimum <= value <= maximum:
            raise GGUFError(
                f"{self.path}: metadata key {shown(key)}: {value} is outside {minimum}..{maximum}"
            )
        return value

    def get_float(self, key: str, default: D = _REQUIRED) -> float | D:
        """Return a number, which must be finite; an integer in the file is converted."""
        value: Any = self._get(key, default, (int, float), "a number")
        if value is default:
            return default
        if not math.isfinite(value):
            raise GGUFError(f"{self.path}: metadata key {shown(key)}: {value} is not finite")
        return float(value)

    def get_str(self, key: str, default: D = _REQUIRED) -> str | D:
        """Return a string."""
        return self._get(key, default, str, "a string")

    def get_bool(self, key: str, default: D = _REQUIRED) -> bool | D:
        """Return a boolean."""
        return self._get(key, default, bool, "true or false")

    def get_array(self, key: str, default: D = _REQUIRED) -> npt.NDArray[np.generic] | D:
        """Return an array of numbers or booleans, read-only, in its stored type."""
        return self._get(key, default, np.ndarray, "an array of numbers")

    def get_strings(self, key: str, default: D = _REQUIRED) -> list[str] | D:
        """Return an array of strings."""
        return self._get(key, default, list, "an array of strings")

    def _get(self, key: str, default: D, kind: type[T] | tuple[type[T], ...], wanted: str) -> T | D:
        if key not in self.metadata:
            if default is _REQUIRED:
                raise GGUFError(f"{self.path}: metadata key {shown(key)} is missing")
            return default
        value = self.metadata[key]
        # A bool is an int in Python.
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise GGUFError(
                f"{self.path}: metadata key {shown(key)}: expected {wanted}, "
                f"got {_described(key, value, self.types)}"
            )
        return value


def _described(key: str, value: object, types: Mapping[str, ValueType]) -> str:
    stored = types[key].name.lower()
    if isinstance(value, np.ndarray | list):
        return f"an array of {len(value)} {stored}"
    return f"{shown(str(value))} ({stored})"
