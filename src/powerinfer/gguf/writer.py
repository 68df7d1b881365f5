"""Write model files of either magic, atomically, tensor by tensor.

Tensor data may be produced on demand, so a file can be larger than memory.
"""

import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import numpy.typing as npt

from powerinfer._replacing import replacing
from powerinfer.errors import GGUFError, ShapeError
from powerinfer.gguf import keys
from powerinfer.gguf.value_types import (
    DEFAULT_ALIGNMENT,
    DTYPES,
    MAGICS,
    MAX_DIMENSIONS,
    ValueType,
    id_of_type,
    shown,
    valid_alignment,
)
from powerinfer.quant import get_format, type_of_name

__all__ = ["TensorSpec", "encode_tensor", "write_gguf"]

Chunk = bytes | bytearray | memoryview | npt.NDArray[np.uint8]
TensorData = Chunk | Iterable[Chunk] | Callable[[], Iterable[Chunk]]
TensorSpec = tuple[str, Sequence[int], str, TensorData]
"""Name, shape (outermost dimension first), format name, and data: bytes or chunks on demand."""

_VERSION = 3
_TYPE_OF_DTYPE = {dtype: value_type for value_type, dtype in DTYPES.items()}


@dataclass(frozen=True)
class _Entry:
    """A checked tensor to be written."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    num_bytes: int
    data: TensorData


def write_gguf(
    path: str | os.PathLike[str],
    metadata: Mapping[str, object],
    tensors: Iterable[TensorSpec],
    *,
    magic: str = "GGUF",
    alignment: int = DEFAULT_ALIGNMENT,
    types: Mapping[str, ValueType] | None = None,
) -> None:
    """Write a model file under a temporary name next to `path`, then rename it.

    Args:
        path: target; replaced if it exists, untouched on failure. A symbolic link is followed.
        metadata: values by key: bool, int, float, str, numpy scalars and one-dimensional arrays,
            lists of str, int, float or bool. Python numbers become u32 (i32, i64, u64 where they
            do not fit; in lists i32 comes first) and f32; numpy values keep their type.
        tensors: name, shape (outermost first), format, and data: bytes, an iterable of chunks, or
            a function that returns one and is called when the tensor is written.
        magic: ``GGUF`` or ``PWRI``.
        alignment: alignment of tensor data, a power of two from 8 on.
        types: stored types by key (of the elements, for arrays), which override the rules above;
            `GGUFFile.types` keeps those of a file.

    Raises:
        GGUFError: a value has no metadata type, a name repeats, or the file cannot be written, for
            example because the target is not a regular file.
        ShapeError: data does not have the size that shape and format need.
    """
    path = Path(path)
    if magic not in MAGICS.values() or not valid_alignment(alignment):
        raise GGUFError(f"{path}: cannot write magic {magic!r} with alignment {alignment}")
    values = {key: value for key, value in metadata.items() if key != keys.ALIGNMENT}
    if alignment != DEFAULT_ALIGNMENT or keys.ALIGNMENT in metadata:
        values[keys.ALIGNMENT] = np.uint32(alignment)
    entries = _checked_entries(tensors, magic, path)
    header = _header_bytes(magic, values, dict(types or {}), entries, alignment)
    with replacing(path, error=GGUFError) as file:
        file.write(header)
        _pad(file, len(header), alignment)
        for entry in entries:
            _write_data(file, entry)
            _pad(file, entry.num_bytes, alignment)


def encode_tensor(
    name: str, values: npt.NDArray[np.float32], format_name: str = "f32"
) -> TensorSpec:
    """Encode f32 values of any shape as a tensor for `write_gguf`.

    Raises:
        UnsupportedError: the format is unknown or has no encoder.
        ShapeError: the last dimension is not a whole number of blocks.
    """
    encoded = get_format(format_name).encode(np.asarray(values, np.float32))
    return name, values.shape, format_name, encoded.reshape(-1)


def _checked_entries(tensors: Iterable[TensorSpec], magic: str, path: Path) -> list[_Entry]:
    entries: dict[str, _Entry] = {}
    for name, shape, format_name, data in tensors:
        if not name or name in entries:
            raise GGUFError(f"{path}: tensor name {shown(name)} is empty or used twice")
        dims = tuple(int(dim) for dim in shape)
        block = type_of_name(format_name)
        ggml_type = id_of_type(format_name, magic)
        row = dims[-1] if dims else 1
        legal = len(dims) <= MAX_DIMENSIONS and all(dim >= 0 for dim in dims)
        if block is None or not legal or row % block.block_size:
            raise ShapeError(
                f"{path}: tensor {shown(name)}: {format_name} cannot have shape {dims}"
            )
        num_bytes = prod(dims) // block.block_size * block.block_bytes
        if isinstance(data, np.ndarray | bytes | bytearray | memoryview):
            _check_size(
                name, len(data) if isinstance(data, bytes | bytearray) else data.nbytes, num_bytes
            )
        entries[name] = _Entry(name, dims, ggml_type, num_bytes, data)
    return list(entries.values())


def _check_size(name: str, got: int, wanted: int) -> None:
    if got != wanted:
        raise ShapeError(f"tensor {shown(name)}: got {got} bytes of data, its shape needs {wanted}")


def _header_bytes(
    magic: str,
    metadata: Mapping[str, object],
    types: Mapping[str, ValueType],
    entries: Sequence[_Entry],
    alignment: int,
) -> bytes:
    out = [magic.encode(), struct.pack("<IQQ", _VERSION, len(entries), len(metadata))]
    for key, value in metadata.items():
        out += [_string(key), _value(key, value, types.get(key))]
    offset = 0
    for entry in entries:
        dims = entry.shape[::-1]
        out.append(_string(entry.name))
        out.append(struct.pack(f"<I{len(dims)}Q", len(dims), *dims))
        out.append(struct.pack("<IQ", entry.ggml_type, offset))
        offset += -(-entry.num_bytes // alignment) * alignment
    return b"".join(out)


def _string(text: str) -> bytes:
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise GGUFError(f"cannot store {shown(text)} as UTF-8: {error.reason}") from None
    return struct.pack("<Q", len(data)) + data


def _value(key: str, value: object, stored: ValueType | None) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", ValueType.STRING) + _string(value)
    is_list = isinstance(value, list | tuple)
    if is_list and stored in (None, ValueType.STRING):
        items = cast("Sequence[object]", value)
        texts = [item for item in items if isinstance(item, str)]
        if len(texts) == len(items) and (items or stored is ValueType.STRING):
            head = struct.pack("<IIQ", ValueType.ARRAY, ValueType.STRING, len(texts))
            return head + b"".join(map(_string, texts))
    array = _number_array(key, value, stored)
    element_type = _TYPE_OF_DTYPE[array.dtype]
    if array.ndim == 0:
        return struct.pack("<I", element_type) + array.tobytes()
    return struct.pack("<IIQ", ValueType.ARRAY, element_type, len(array)) + array.tobytes()


def _number_array(key: str, value: object, stored: ValueType | None) -> npt.NDArray[np.generic]:
    """Convert numbers to an array of a storable type; of dimension 0 for a single number."""
    where = f"metadata key {shown(key)}"
    try:
        array: npt.NDArray[np.generic] = np.asarray(value)
    except (ValueError, OverflowError):
        raise GGUFError(f"{where}: {value!r:.80} has no metadata type") from None
    if array.dtype.kind not in "?biuf" or array.ndim > 1:
        raise GGUFError(f"{where}: {value!r:.80} has no metadata type")
    if stored is not None and stored in DTYPES:
        dtype = DTYPES[stored]
    elif isinstance(value, np.ndarray | np.generic):
        dtype = array.dtype.newbyteorder("<")
    else:
        dtype = _dtype_for(array)
    if dtype not in _TYPE_OF_DTYPE:
        raise GGUFError(f"{where}: {array.dtype} has no metadata type")
    with np.errstate(over="ignore"):
        converted = array.astype(dtype)
    if array.dtype.kind in "biu" and not np.array_equal(converted, array):
        raise GGUFError(f"{where}: {value!r:.80} does not fit {_TYPE_OF_DTYPE[dtype].name}")
    return converted


def _dtype_for(array: npt.NDArray[np.generic]) -> np.dtype[np.generic]:
    """Choose the type for Python numbers as llama.cpp's writers do."""
    if array.dtype.kind == "f":
        return DTYPES[ValueType.F32]
    if array.dtype.kind in "?b":
        return DTYPES[ValueType.BOOL]
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    short = (ValueType.I32, ValueType.U32) if array.ndim else (ValueType.U32, ValueType.I32)
    for value_type in (*short, ValueType.I64):
        limits = np.iinfo(DTYPES[value_type].str)
        if limits.min <= low and high <= limits.max:
            return DTYPES[value_type]
    return DTYPES[ValueType.U64]


def _write_data(file: BinaryIO, entry: _Entry) -> None:
    data = entry.data() if callable(entry.data) else entry.data
    single = isinstance(data, np.ndarray | bytes | bytearray | memoryview)
    chunks = cast("Iterable[Chunk]", (data,) if single else data)
    written = 0
    for chunk in chunks:
        view = (
            np.ascontiguousarray(chunk).data if isinstance(chunk, np.ndarray) else memoryview(chunk)
        )
        written += view.nbytes
        if written > entry.num_bytes:
            break
        file.write(view)
    _check_size(entry.name, written, entry.num_bytes)


def _pad(file: BinaryIO, num_bytes: int, alignment: int) -> None:
    file.write(b"\0" * (-num_bytes % alignment))
