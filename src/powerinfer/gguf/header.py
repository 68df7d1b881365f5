"""Parse and check the header of one file: magic, metadata, tensor table.

No tensor data is touched.
"""

import itertools
import mmap
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from powerinfer.gguf import keys
from powerinfer.gguf.cursor import Cursor
from powerinfer.gguf.value_types import (
    DEFAULT_ALIGNMENT,
    DTYPES,
    MAGICS,
    MAX_ALIGNMENT,
    MAX_DIMENSIONS,
    MIN_ALIGNMENT,
    MetadataValue,
    ValueType,
    shown,
    tensor_type,
    valid_alignment,
)

__all__ = ["Header", "TensorInfo", "parse_header"]

# Smallest possible entries, to bound counts. Metadata: key (8 + 1), type (4), value (1). Tensor:
# name (8 + 1), number of dimensions (4), type (4), offset (8).
_MIN_KEY_BYTES = 14
_MIN_TENSOR_BYTES = 25
# numpy refuses larger shapes even where another dimension is zero.
_MAX_ELEMENTS = 1 << 56


@dataclass(frozen=True)
class TensorInfo:
    """One checked row of the tensor table; names, shapes and formats as in `Tensor`."""

    name: str
    shape: tuple[int, ...]
    format: str
    start: int
    num_bytes: int


@dataclass(frozen=True)
class Header:
    """Header of one file; its fields are those of `GGUFFile`."""

    magic: str
    version: int
    metadata: dict[str, MetadataValue]
    types: dict[str, ValueType]
    tensors: tuple[TensorInfo, ...]


def parse_header(buffer: mmap.mmap, path: Path) -> Header:
    """Parse and check the header of a mapped file.

    Raises:
        GGUFError: it is not a GGUF file of version 2 or 3, or it is inconsistent.
    """
    cursor = Cursor(buffer, path)
    magic, version = _magic_and_version(cursor)
    num_tensors = cursor.count("number of tensors", _MIN_TENSOR_BYTES)
    num_keys = cursor.count("number of metadata entries", _MIN_KEY_BYTES)
    metadata: dict[str, MetadataValue] = {}
    types: dict[str, ValueType] = {}
    for index in range(num_keys):
        _read_entry(cursor, index, metadata, types)
    table: dict[str, TensorInfo] = {}
    for index in range(num_tensors):
        info = _read_tensor(cursor, index, magic)
        if info.name in table:
            raise cursor.error(f"tensor {shown(info.name)}", "appears twice")
        table[info.name] = info
    tensors = _place(cursor, list(table.values()), _alignment(cursor, metadata))
    return Header(magic, version, metadata, types, tensors)


def _magic_and_version(cursor: Cursor) -> tuple[str, int]:
    first = cursor.raw(4, "magic")
    magic = MAGICS.get(first)
    if magic is None:
        raise cursor.error("magic", f"the file starts with {first!r}, not with b'GGUF' or b'PWRI'")
    version = cursor.u32("version")
    if version in (2, 3):
        return magic, version
    if version == 1:
        problem = "version 1 is not supported; convert the model again (2 and 3 are read)"
    elif version & 0xFFFF == 0:
        problem = "the file is big-endian; only little-endian files are supported"
    else:
        problem = f"version {version} is unknown; 2 and 3 are read"
    raise cursor.error("version", problem)


def _read_entry(
    cursor: Cursor,
    index: int,
    metadata: dict[str, MetadataValue],
    types: dict[str, ValueType],
) -> None:
    key = cursor.text(f"key of metadata entry {index}")
    where = f"metadata key {shown(key)}"
    if not key:
        raise cursor.error(f"key of metadata entry {index}", "is empty")
    if key in metadata:
        raise cursor.error(where, "appears twice")
    value_type = _value_type(cursor, where)
    if value_type is ValueType.ARRAY:
        types[key] = _value_type(cursor, f"{where}, element type")
        metadata[key] = _read_array(cursor, types[key], where)
    else:
        types[key] = value_type
        metadata[key] = _read_scalar(cursor, value_type, where)


def _value_type(cursor: Cursor, where: str) -> ValueType:
    number = cursor.u32(f"{where}, type")
    try:
        return ValueType(number)
    except ValueError:
        raise cursor.error(where, f"value type {number} is unknown (0 to 12 are known)") from None


def _read_scalar(cursor: Cursor, value_type: ValueType, where: str) -> MetadataValue:
    if value_type is ValueType.STRING:
        return cursor.text(where)
    if value_type is ValueType.BOOL:
        return bool(_checked_bools(cursor, 1, where)[0])
    value: int | float = cursor.numbers(DTYPES[value_type], 1, where)[0].item()
    return value


def _read_array(cursor: Cursor, element_type: ValueType, where: str) -> MetadataValue:
    if element_type is ValueType.ARRAY:
        raise cursor.error(where, "is an array of arrays, which is not supported")
    if element_type is ValueType.STRING:
        return cursor.texts(cursor.count(f"{where}, length", 8), where)
    dtype = DTYPES[element_type]
    count = cursor.count(f"{where}, length", dtype.itemsize)
    if element_type is ValueType.BOOL:
        return _checked_bools(cursor, count, where)
    return cursor.numbers(dtype, count, where)


def _checked_bools(
    cursor: Cursor, count: int, where: str
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    stored = cursor.numbers(np.dtype("u1"), count, where)
    if count and int(np.max(stored)) > 1:
        raise cursor.error(where, f"a truth value is stored as {int(np.max(stored))}, not 0 or 1")
    return stored.view(np.bool_)


def _read_tensor(cursor: Cursor, index: int, magic: str) -> TensorInfo:
    """Read one row of the tensor table; `start` is still relative to the data section."""
    name = cursor.text(f"name of tensor {index}")
    where = f"tensor {shown(name)}"
    if not name:
        raise cursor.error(f"name of tensor {index}", "is empty")
    num_dims = cursor.u32(f"{where}, number of dimensions")
    if num_dims > MAX_DIMENSIONS:
        raise cursor.error(where, f"has {num_dims} dimensions; at most {MAX_DIMENSIONS} are legal")
    dims = [cursor.u64(f"{where}, dimension {i}") for i in range(num_dims)]
    if prod(dim for dim in dims if dim) > _MAX_ELEMENTS:
        raise cursor.error(where, f"dimensions {dims} are beyond anything a file can hold")
    number = cursor.u32(f"{where}, type")
    block = tensor_type(number, magic)
    if block is None:
        raise cursor.error(where, f"type id {number} is unknown")
    row = dims[0] if dims else 1
    if row % block.block_size:
        raise cursor.error(
            where,
            f"rows of {row} elements are not whole {block.name} blocks of {block.block_size}",
        )
    num_bytes = prod(dims) // block.block_size * block.block_bytes
    offset = cursor.u64(f"{where}, offset")
    return TensorInfo(name, tuple(reversed(dims)), block.name, offset, num_bytes)


def _alignment(cursor: Cursor, metadata: dict[str, MetadataValue]) -> int:
    value = metadata.get(keys.ALIGNMENT, DEFAULT_ALIGNMENT)
    where = f"metadata key '{keys.ALIGNMENT}'"
    if isinstance(value, bool) or not isinstance(value, int):
        raise cursor.error(where, f"is a {type(value).__name__}, not an integer")
    if not valid_alignment(value):
        raise cursor.error(
            where,
            f"is {value}, not a power of two from {MIN_ALIGNMENT} to {MAX_ALIGNMENT}",
        )
    return value


def _place(cursor: Cursor, table: list[TensorInfo], alignment: int) -> tuple[TensorInfo, ...]:
    """Turn offsets into file positions; refuse unaligned, overlapping or missing data."""
    data_start = -(-cursor.position // alignment) * alignment
    placed = [_placed(cursor, info, data_start, alignment) for info in table]
    in_order = sorted((info for info in placed if info.num_bytes), key=lambda info: info.start)
    for before, after in itertools.pairwise(in_order):
        if before.start + before.num_bytes > after.start:
            raise cursor.error(
                f"tensor {shown(after.name)}", f"overlaps tensor {shown(before.name)}"
            )
    return tuple(placed)


def _placed(cursor: Cursor, info: TensorInfo, data_start: int, alignment: int) -> TensorInfo:
    # PowerInfer stores an empty tensor for a layer without neurons on the GPU.
    start = data_start + info.start if info.num_bytes else 0
    if start % alignment:
        raise cursor.error(
            f"tensor {shown(info.name)}",
            f"offset {info.start} is not a multiple of the alignment {alignment}",
        )
    if start + info.num_bytes > cursor.size:
        raise cursor.error(
            f"tensor {shown(info.name)}",
            f"its {info.num_bytes} bytes at {start} reach beyond the end of the file "
            f"({cursor.size} bytes); it is truncated or damaged",
        )
    return TensorInfo(info.name, info.shape, info.format, start, info.num_bytes)
