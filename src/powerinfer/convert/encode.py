"""Encoding a checkpoint's numbers in a file's format, in steps that fit a cache."""

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np

from powerinfer.convert.arrange import Array, Change, Piece, Target
from powerinfer.errors import NumericsError
from powerinfer.ops.cpu.encode import encode_rows
from powerinfer.quant import get_format
from powerinfer.values import ByteArray, FloatArray

__all__ = ["Step", "encoded", "steps"]

Step: TypeAlias = tuple[Piece, Array, Array | None]
"""A piece, some of its values in C order, and the scales of their blocks."""

_ELEMENTS_PER_STEP = 1 << 20
# A transposed matrix is copied in tiles that touch few pages and use whole cache lines.
_TILE_ROWS, _TILE_COLUMNS = 512, 64

# The bits of infinity; those of larger magnitudes are NaN.
_INFINITY: dict[str, np.unsignedinteger] = {
    "f64": np.uint64(0x7FF0_0000_0000_0000),
    "f32": np.uint32(0x7F80_0000),
    "f16": np.uint16(0x7C00),
    "bf16": np.uint16(0x7F80),
}
_LARGEST = {"f16": 65504.0, "bf16": 2.0**128 - 2.0**120}


def steps(target: Target) -> Iterator[Step]:
    """Split a tensor into steps."""
    for piece in target.pieces:
        if piece.scales is None:
            for values in _cut(piece.values):
                yield piece, values, None
        else:
            size = max(1, piece.values.size // piece.values.shape[0])
            count = max(1, _ELEMENTS_PER_STEP // size)
            for start in range(0, piece.values.shape[0], count):
                rows = slice(start, start + count)
                yield piece, piece.values[rows], piece.scales[rows]


def encoded(
    step: Step, format_name: str, row_length: int | None = None, change: Change | None = None
) -> ByteArray:
    """Encode the numbers of a step: u8[num_bytes].

    Args:
        format_name: `f32`, `f16`, `bf16`, a block format; `mxfp4` for MXFP4 blocks only.
        row_length: numbers in a row of the tensor; None for the last axis of the step.
        change: see `Target.change`.

    Raises:
        NumericsError: NaN, infinity, or a number outside the format's range; the message names
            file, tensor and remedy.
    """
    piece, values, scales = step
    if scales is not None:
        return _mxfp4_blocks(values, scales)
    source = piece.source.format
    array = _contiguous(values)
    _check_finite(array, source, piece)
    if change is not None or source == "f64":
        numbers = _as_f32(array, source)
        array, source = numbers if change is None else change(numbers), "f32"
        _check_finite(array, source, piece)
    if source == format_name:
        return _as_bytes(array)
    row_length = row_length or array.shape[-1]
    rows = array.reshape(-1, row_length).view(np.uint8)
    try:
        # The steps of a tensor are encoded at the same time, by a thread each.
        done = encode_rows(rows, source, format_name, row_length, threads=1)
    except NumericsError:
        largest = float(np.abs(_as_f32(array, source)).max())
        raise _too_large(largest, format_name, piece) from None
    return done.data.reshape(-1)


def _too_large(largest: float, format_name: str, piece: Piece) -> NumericsError:
    problem = f"{piece.source}: holds {largest:g}"
    if format_name not in _LARGEST:
        problem += f", which {format_name} has no scale for"
    else:
        problem += f"; {format_name.upper()} ends at {_LARGEST[format_name]:g}"
    wider = "f32" if format_name == "bf16" else "bf16"
    return NumericsError(problem, remedy=f"write it with {{outtype={wider!r}}}")


def _cut(values: Array) -> Iterator[Array]:
    """Split along the first axes into parts of `_ELEMENTS_PER_STEP` at most, if possible."""
    if values.ndim < 2 or values.size <= _ELEMENTS_PER_STEP:
        if values.size:
            yield values
        return
    item = values.size // values.shape[0]
    is_transposed = abs(values.strides[-2]) < abs(values.strides[-1])
    if values.ndim > 2 and (item > _ELEMENTS_PER_STEP or is_transposed):
        for each in values:
            yield from _cut(each)
        return
    count = max(1, _ELEMENTS_PER_STEP // item)
    if is_transposed:
        count = max(count, _TILE_ROWS)
    for start in range(0, values.shape[0], count):
        yield values[start : start + count]


def _contiguous(values: Array) -> Array:
    if values.ndim != 2 or abs(values.strides[0]) >= abs(values.strides[1]):
        return np.require(np.atleast_1d(values), requirements=["C_CONTIGUOUS", "ALIGNED"])
    rows, columns = values.shape
    out = np.empty((rows, columns), values.dtype)
    for row in range(0, rows, _TILE_ROWS):
        for column in range(0, columns, _TILE_COLUMNS):
            tile = slice(row, row + _TILE_ROWS), slice(column, column + _TILE_COLUMNS)
            out[tile] = values[tile]
    return out


def _as_bytes(array: Array) -> ByteArray:
    flat: ByteArray = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return flat


def _check_finite(array: Array, source: str, piece: Piece) -> None:
    infinity = _INFINITY[source]
    # Without their signs, numbers are in the order of their bits.
    bits = array.view(infinity.dtype) << infinity.dtype.type(1)
    if bits.max(initial=0) >= infinity << infinity.dtype.type(1):
        raise NumericsError(f"{piece.source}: holds NaN or infinity; the checkpoint is damaged")


def _as_f32(array: Array, source: str) -> FloatArray:
    if source == "f64":
        with np.errstate(over="ignore"):
            return array.astype(np.float32)
    return get_format(source).decode(array.view(np.uint8))


def _mxfp4_blocks(values: Array, scales: Array) -> ByteArray:
    """Repack bytes of neighbors as bytes of elements j and j + 16, after the exponent."""
    blocks: ByteArray = np.ascontiguousarray(values, np.uint8).reshape(-1, 16)
    codes = np.empty((len(blocks), 32), np.uint8)
    codes[:, ::2] = blocks & np.uint8(15)
    codes[:, 1::2] = blocks >> np.uint8(4)
    out = np.empty((len(blocks), 17), np.uint8)
    out[:, 0] = np.ascontiguousarray(scales).reshape(-1)
    out[:, 1:] = codes[:, :16] | (codes[:, 16:] << np.uint8(4))
    return out.reshape(-1)
