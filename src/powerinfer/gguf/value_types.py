"""Constants of the container: magics, value types, type ids.

Source: the GGUF specification (ggml, docs/gguf.md). PowerInfer's files differ in the magic and,
being written by a ggml of November 2023, in the ids of integer tensors.
"""

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from powerinfer.errors import GGUFError
from powerinfer.quant import BlockType, type_of_id, type_of_name

__all__ = [
    "DEFAULT_ALIGNMENT",
    "DTYPES",
    "MAGICS",
    "MAX_ALIGNMENT",
    "MAX_DIMENSIONS",
    "MIN_ALIGNMENT",
    "MetadataValue",
    "ValueType",
    "id_of_type",
    "shown",
    "tensor_type",
    "valid_alignment",
]

MAGICS = {b"GGUF": "GGUF", b"PWRI": "PWRI"}
"""First four bytes of the files of llama.cpp and PowerInfer, with their names."""

DEFAULT_ALIGNMENT = 32
MIN_ALIGNMENT = 8
"""The specification requires a multiple of 8, which also aligns every element type."""
MAX_ALIGNMENT = 1 << 21
"""A huge page; anything larger comes from a damaged file."""
MAX_DIMENSIONS = 4
"""ggml's limit."""

MetadataValue = bool | int | float | str | npt.NDArray[np.generic] | list[str]
"""A metadata value; arrays of numbers are numpy arrays, arrays of strings lists."""


class ValueType(IntEnum):
    """Stored type of a metadata value."""

    U8 = 0
    I8 = 1
    U16 = 2
    I16 = 3
    U32 = 4
    I32 = 5
    F32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    U64 = 10
    I64 = 11
    F64 = 12


DTYPES: dict[ValueType, np.dtype[np.generic]] = {
    ValueType.U8: np.dtype("u1"),
    ValueType.I8: np.dtype("i1"),
    ValueType.U16: np.dtype("<u2"),
    ValueType.I16: np.dtype("<i2"),
    ValueType.U32: np.dtype("<u4"),
    ValueType.I32: np.dtype("<i4"),
    ValueType.F32: np.dtype("<f4"),
    ValueType.BOOL: np.dtype("?"),
    ValueType.U64: np.dtype("<u8"),
    ValueType.I64: np.dtype("<i8"),
    ValueType.F64: np.dtype("<f8"),
}
"""Storage of numbers and booleans."""

# ggml used these ids for its integer types until January 2024, and then for other types.
_POWERINFER_IDS = {16: "i8", 17: "i16", 18: "i32"}


def tensor_type(ggml_type: int, magic: str) -> BlockType | None:
    """Look up a type id of a tensor table; ids 16 to 18 depend on the magic."""
    if magic == "PWRI" and ggml_type in _POWERINFER_IDS:
        return type_of_name(_POWERINFER_IDS[ggml_type])
    return type_of_id(ggml_type)


def id_of_type(name: str, magic: str) -> int:
    """Return the id of a type in tensor tables of this magic.

    Raises:
        GGUFError: the type is unknown, or the container cannot store it.
    """
    if magic == "PWRI":
        for ggml_type, legacy in _POWERINFER_IDS.items():
            if name == legacy:
                return ggml_type
    found = type_of_name(name)
    if found is None or tensor_type(found.ggml_type, magic) != found:
        raise GGUFError(f"tensor type {name!r} cannot be stored in a file with magic {magic}")
    return found.ggml_type


def valid_alignment(alignment: int) -> bool:
    """Return whether an alignment is a power of two from `MIN_ALIGNMENT` to `MAX_ALIGNMENT`."""
    return MIN_ALIGNMENT <= alignment <= MAX_ALIGNMENT and alignment & (alignment - 1) == 0


def shown(name: str) -> str:
    """Quote a name from a file for a message, escaped and truncated."""
    return repr(name if len(name) <= 80 else f"{name[:77]}...")
