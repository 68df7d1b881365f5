"""Facts of the container that reader and writer share: magics, value types, type ids, names.

Source: the GGUF specification (ggml, docs/gguf.md) for the container; PowerInfer's files differ in
the magic and, being written by a ggml of November 2023, in the ids of integer tensors.
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
"""First four bytes of a file, and what we call them: llama.cpp's and PowerInfer's."""

DEFAULT_ALIGNMENT = 32
MIN_ALIGNMENT = 8
"""The specification asks for a multiple of 8, which also aligns every element type."""
MAX_ALIGNMENT = 1 << 21
"""A huge page; more than that is a damaged file, not a wish."""
MAX_DIMENSIONS = 4
"""ggml's limit."""

MetadataValue = bool | int | float | str | npt.NDArray[np.generic] | list[str]
"""A metadata value in Python; arrays of numbers are numpy arrays, of strings lists."""


class ValueType(IntEnum):
    """Type of a metadata value, as stored."""

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
"""Storage of every type that is a number or a truth value."""

# ggml gave these ids to its integer types until January 2024, and then to other types.
_POWERINFER_IDS = {16: "i8", 17: "i16", 18: "i32"}


def tensor_type(ggml_type: int, magic: str) -> BlockType | None:
    """Look up a type id of a tensor table; the magic decides what ids 16 to 18 mean."""
    if magic == "PWRI" and ggml_type in _POWERINFER_IDS:
        return type_of_name(_POWERINFER_IDS[ggml_type])
    return type_of_id(ggml_type)


def id_of_type(name: str, magic: str) -> int:
    """Return the id that a tensor table of this magic uses for a type.

    Raises:
        GGUFError: no type has this name, or the container cannot express it.
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
    """Whether this is a power of two between `MIN_ALIGNMENT` and `MAX_ALIGNMENT`."""
    return MIN_ALIGNMENT <= alignment <= MAX_ALIGNMENT and alignment & (alignment - 1) == 0


def shown(name: str) -> str:
    """Quote a name from a file for a message: escaped and cut to a readable length."""
    return repr(name if len(name) <= 80 else f"{name[:77]}...")
