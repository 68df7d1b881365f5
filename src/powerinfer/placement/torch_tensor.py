"""What a pickle of torch says about a tensor of one dimension: where its numbers are.

A tensor is a call of one of three functions of `torch._utils`, with a storage (key, type, size),
an offset, a shape and strides; a parameter is a call around that.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from powerinfer.placement.pickle_values import Call, Global, PersistentId

__all__ = ["BFLOAT16", "LARGEST_BYTES", "TorchVector", "torch_vector"]

BFLOAT16 = "bf16"
"""The one element type that numpy does not have."""
LARGEST_BYTES = 64 << 20
"""Of a storage: a vector may be a row of a larger tensor, which is then stored whole."""

_STORAGES = {
    "DoubleStorage": "f8",
    "FloatStorage": "f4",
    "HalfStorage": "f2",
    "BFloat16Storage": BFLOAT16,
    "LongStorage": "i8",
    "IntStorage": "i4",
    "ShortStorage": "i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
    "UntypedStorage": "",
}
"""Element type by the name of a storage; that of an untyped one stands elsewhere."""
_TYPES = {"uint16": "u2", "uint32": "u4", "uint64": "u8"}
"""Types that torch keeps in untyped storages."""


@dataclass(frozen=True, slots=True)
class TorchVector:
    """Where the elements of a vector lie; all within the storage.

    Attributes:
        key: of the storage.
        dtype: numpy's name for the type of an element, without byte order; or `BFLOAT16`.
        num_elements: of the storage; of an untyped one, bytes.
        num_bytes: of the storage, at most `LARGEST_BYTES`.
        start: first element.
        stride: elements from one to the next.
    """

    key: str
    dtype: str
    num_elements: int
    num_bytes: int
    start: int
    stride: int


def torch_vector(value: Any, length: int) -> TorchVector:
    """Find the one tensor that a pickle describes, and check it against its storage.

    Args:
        value: of the pickle.
        length: that it must have.

    Raises:
        ValueError: it holds anything else.
    """
    while _is_call(value, "_rebuild_parameter") and value.arguments:
        value = value.arguments[0]
    is_untyped = _is_call(value, "_rebuild_tensor_v3")
    if not is_untyped and not _is_call(value, "_rebuild_tensor_v2", "_rebuild_tensor"):
        found = value.function if isinstance(value, Call) else type(value).__name__
        raise ValueError(f"it holds something else ({found})")
    arguments = value.arguments
    if len(arguments) < (7 if is_untyped else 4):
        raise ValueError("its tensor is described by too few values")
    _check_shape(arguments[2], length)
    storage, start, _, strides = arguments[:4]
    if not _are_counts(strides) or len(strides) != 1 or not _are_counts((start,)):
        raise ValueError("its tensor has no legal stride or offset")
    key, dtype, num_elements = _storage(storage)
    if is_untyped:
        dtype = _untyped_dtype(dtype, arguments[6])
        num_bytes = num_elements
    else:
        num_bytes = num_elements * _item_bytes(dtype)
    if num_bytes > LARGEST_BYTES:
        raise ValueError(f"its storage has {num_bytes} bytes, must have at most {LARGEST_BYTES}")
    if (start + strides[0] * (length - 1) + 1) * _item_bytes(dtype) > num_bytes:
        raise ValueError("its tensor reaches beyond the end of its storage")
    return TorchVector(key, dtype, num_elements, num_bytes, start, strides[0])


def _check_shape(shape: Any, length: int) -> None:
    if not _are_counts(shape) or len(shape) != 1 or shape[0] != length:
        dims = " x ".join(map(str, shape[:8])) if _are_counts(shape) else "damaged"
        raise ValueError(f"its tensor's shape is {dims or 'a single number'}")


def _is_call(value: Any, *names: str) -> bool:
    if not isinstance(value, Call) or value.function.module != "torch._utils":
        return False
    return value.function.name in names


def _are_counts(values: Any) -> bool:
    """Whether these are sizes: whole numbers from 0 on."""
    return isinstance(values, tuple) and all(
        isinstance(item, int) and not isinstance(item, bool) and 0 <= item < 1 << 63
        for item in values
    )


def _storage(value: Any) -> tuple[str, str, int]:
    """Key, element type (empty: untyped) and number of elements of a storage."""
    parts = value.value if isinstance(value, PersistentId) else ()
    if not isinstance(parts, tuple) or len(parts) < 5 or parts[0] != "storage":
        raise ValueError("its tensor has no storage")
    _, kind, key, _, num_elements = parts[:5]
    if not isinstance(kind, Global) or kind.name not in _STORAGES:
        found = kind if isinstance(kind, Global) else "damaged"
        raise ValueError(f"its numbers have a type that is not read ({found})")
    if not isinstance(key, str) or not _are_counts((num_elements,)):
        raise ValueError("its storage has no legal key or size")
    if len(parts) > 5 and parts[5] is not None:
        raise ValueError("its storage is part of another one")
    return key, _STORAGES[kind.name], num_elements


def _untyped_dtype(stored: str, value: Any) -> str:
    if stored or not isinstance(value, Global) or value.name not in _TYPES:
        raise ValueError("its numbers have a type that is not read")
    return _TYPES[value.name]


def _item_bytes(dtype: str) -> int:
    if not dtype:
        raise ValueError("its numbers have no type")
    return 2 if dtype == BFLOAT16 else np.dtype(dtype).itemsize
