"""An open model: metadata with typed getters, and tensors as views of the mapped file(s)."""

import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, overload

import numpy as np
import numpy.typing as npt

from powerinfer.errors import GGUFError
from powerinfer.gguf import keys
from powerinfer.gguf.value_types import MetadataValue, ValueType, shown
from powerinfer.quant import get_format, type_of_name

__all__ = ["GGUFFile", "Part", "Tensor"]

D = TypeVar("D")


class _Required:
    """Marks a key without default: its absence is an error."""


_REQUIRED = _Required()


@dataclass(frozen=True, eq=False)
class Tensor:
    """One tensor of a file.

    Attributes:
        name: name in the file.
        shape: outermost dimension first (the reverse of the file's order).
        format: lower-case type name; not necessarily one we compute with.
        data: u8[num_bytes], a read-only view of the mapped file; keeps the mapping alive.
        file: the file (of a split model: the part) that holds it.
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
        """The data as u8[num_rows, row_bytes], a view: one row per vector of the last dimension."""
        num_rows = math.prod(self.shape[:-1])
        row_bytes = len(self.data) // num_rows if num_rows else 0
        return self.data.reshape(num_rows, row_bytes)

    def decode(self) -> npt.NDArray[np.float32]:
        """Decode to f32[shape], newly allocated.

        Raises:
            UnsupportedError: the type is known but not implemented; lists those that are.
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
class Part:
    """One mapped file of a model.

    Attributes:
        path: where it is.
        buffer: the whole file, mapped read-only.
        header_bytes: size of magic, metadata and tensor table.
    """

    path: Path
    buffer: mmap.mmap
    header_bytes: int


@dataclass(frozen=True, eq=False)
class GGUFFile:
    """An open model: one GGUF file, or all parts of a split one.

    Attributes:
        paths: the files, in order.
        magic: ``GGUF``, or ``PWRI`` for PowerInfer's container.
        version: 2 or 3.
        metadata: values by key; arrays of numbers are read-only numpy arrays, of strings lists.
        tensors: by name, in file order.
        types: stored type by key; for arrays the type of the elements.
        parts: the mapped files.
    """

    paths: tuple[Path, ...]
    magic: str
    version: int
    metadata: dict[str, MetadataValue]
    tensors: dict[str, Tensor]
    types: dict[str, ValueType]
    parts: tuple[Part, ...] = field(repr=False)

    @property
    def path(self) -> Path:
        """The first file; names the model in messages."""
        return self.paths[0]

    @property
    def missing_weights(self) -> str | None:
        """What to say about a file without weights, such as a vocabulary; None for a model."""
        if self.tensors:
            return None
        content = "a vocabulary" if keys.TOKENS in self.metadata else "metadata"
        return f"the file has only {content}, no weights"

    def tensor(self, name: str) -> Tensor:
        """Return a tensor that must exist.

        Raises:
            GGUFError: there is none of this name.
        """
        try:
            return self.tensors[name]
        except KeyError:
            raise GGUFError(f"{self.path}: tensor {shown(name)} is missing") from None

    @overload
    def get_int(self, key: str, *, minimum: int = ..., maximum: int = ...) -> int: ...
    @overload
    def get_int(
        self, key: str, default: D, *, minimum: int = ..., maximum: int = ...
    ) -> int | D: ...
    def get_int(
        self,
        key: str,
        default: object = _REQUIRED,
        *,
        minimum: int = 0,
        maximum: int = 2**63 - 1,
    ) -> object:
        """Return an integer.

        Args:
            key: full key name.
            default: returned where the key is absent; without it the key is required.
            minimum: smallest legal value.
            maximum: largest legal value.

        Raises:
            GGUFError: absent without default, not an integer, or out of range.
        """
        value = self._get(key, default)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, value, "an integer")
        if not minimum <= value <= maximum:
            raise GGUFError(
                f"{self.path}: metadata key {shown(key)}: {value} is outside {minimum}..{maximum}"
            )
        return value

    @overload
    def get_float(self, key: str) -> float: ...
    @overload
    def get_float(self, key: str, default: D) -> float | D: ...
    def get_float(self, key: str, default: object = _REQUIRED) -> object:
        """Return a finite number; an integer in the file is converted.

        Raises:
            GGUFError: absent without default, not a number, NaN or infinite.
        """
        value = self._get(key, default)
        if value is default:
            return value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, value, "a number")
        if not math.isfinite(value):
            raise GGUFError(f"{self.path}: metadata key {shown(key)}: {value} is not finite")
        return float(value)

    @overload
    def get_str(self, key: str) -> str: ...
    @overload
    def get_str(self, key: str, default: D) -> str | D: ...
    def get_str(self, key: str, default: object = _REQUIRED) -> object:
        """Return a string.

        Raises:
            GGUFError: absent without default, or not a string.
        """
        value = self._get(key, default)
        if value is not default and not isinstance(value, str):
            raise self._wrong(key, value, "a string")
        return value

    @overload
    def get_bool(self, key: str) -> bool: ...
    @overload
    def get_bool(self, key: str, default: D) -> bool | D: ...
    def get_bool(self, key: str, default: object = _REQUIRED) -> object:
        """Return a truth value.

        Raises:
            GGUFError: absent without default, or not a truth value.
        """
        value = self._get(key, default)
        if value is not default and not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    @overload
    def get_array(self, key: str) -> npt.NDArray[np.generic]: ...
    @overload
    def get_array(self, key: str, default: D) -> npt.NDArray[np.generic] | D: ...
    def get_array(self, key: str, default: object = _REQUIRED) -> object:
        """Return an array of numbers or truth values, read-only, in its stored type.

        Raises:
            GGUFError: absent without default, or not such an array.
        """
        value = self._get(key, default)
        if value is not default and not isinstance(value, np.ndarray):
            raise self._wrong(key, value, "an array of numbers")
        return value

    @overload
    def get_strings(self, key: str) -> list[str]: ...
    @overload
    def get_strings(self, key: str, default: D) -> list[str] | D: ...
    def get_strings(self, key: str, default: object = _REQUIRED) -> object:
        """Return an array of strings.

        Raises:
            GGUFError: absent without default, or not such an array.
        """
        value = self._get(key, default)
        if value is not default and not isinstance(value, list):
            raise self._wrong(key, value, "an array of strings")
        return value

    def _get(self, key: str, default: object) -> object:
        if default is _REQUIRED and key not in self.metadata:
            raise GGUFError(f"{self.path}: metadata key {shown(key)} is missing")
        return self.metadata.get(key, default)

    def _wrong(self, key: str, value: object, wanted: str) -> GGUFError:
        return GGUFError(
            f"{self.path}: metadata key {shown(key)}: expected {wanted}, "
            f"got {_described(key, value, self.types)}"
        )


def _described(key: str, value: object, types: Mapping[str, ValueType]) -> str:
    stored = types[key].name.lower()
    if isinstance(value, np.ndarray | list):
        return f"an array of {len(value)} {stored}"
    return f"{shown(str(value))} ({stored})"
