"""Encoding a checkpoint's numbers in a file's format, in steps that fit a cache."""

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from powerinfer.convert.arrange import Array, Piece, Target
from powerinfer.errors import NumericsError
from powerinfer.ops.cpu.encode import encode_rows
from powerinfer.values import ByteArray, FloatArray

__all__ = ["Step", "encoded", "steps"]

Step: TypeAlias = tuple[Piece, Array, Array | None]
"""A piece, some of its values in C order, and the scales of their blocks."""

_ELEMENTS_PER_STEP = 1 << 20
# A transposed matrix is copied in tiles that touch few pages and use whole cache lines.
_TILE_ROWS, _TILE_COLUMNS = 512, 64

_Bits: TypeAlias = npt.NDArray[np.uint16]
_INFINITY_BF16 = 0x7F80
_INFINITY_F16 = 0x7C00
_INFINITY_F32 = 0x7F800000
_MAGNITUDE_16 = 0x7FFF
_MAGNITUDE_32 = 0x7FFFFFFF
# BF16 from 2^-14 to below 2^16 is F16 shifted by three bits, with the exponent reduced by 112.
_SMALLEST_SHIFTED = 113 << 7
_BEHIND_SHIFTED = 143 << 7
_EXPONENTS_APART = 112 << 7
_LARGEST_F16 = 65504.0
_OWN_THREAD = 1


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


def encoded(step: Step, format_name: str, *, adds_one: bool) -> ByteArray:
    """Encode the numbers of a step: u8[num_bytes].

    Args:
        format_name: `f32`, `f16`, `bf16`, a block format; `mxfp4` for MXFP4 blocks only.

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
    if source == format_name and not adds_one:
        return _as_bytes(array)
    if format_name not in ("f32", "f16", "bf16"):
        return _in_blocks(array, source, format_name, piece)
    if (source, format_name) == ("bf16", "f16") and not adds_one:
        return _as_bytes(_bf16_to_f16(array.view(np.uint16), piece))
    numbers = _as_f32(array, source)
    if adds_one:
        numbers = numbers + np.float32(1.0)
    if format_name == "f32":
        return _as_bytes(numbers)
    return _encoded_f32(numbers, format_name, piece)


def _encoded_f32(numbers: FloatArray, format_name: str, piece: Piece) -> ByteArray:
    if format_name == "f16":
        largest = float(np.abs(numbers).max(initial=0.0))
        # Half a unit above the largest; numbers in between round down to it.
        if largest >= _LARGEST_F16 + 16:
            raise _overflow(largest, piece)
        return _as_bytes(numbers.astype("<f2"))
    return _as_bytes(_f32_to_bf16(numbers, piece))


def _in_blocks(array: Array, source: str, format_name: str, piece: Piece) -> ByteArray:
    """Encode rows in a block format with the native encoders, on this thread alone."""
    if source == "f64":
        array, source = _as_f32(array, source), "f32"
    rows = array.reshape(-1, array.shape[-1])
    try:
        done = encode_rows(
            rows.view(np.uint8), source, format_name, array.shape[-1], threads=_OWN_THREAD
        )
    except NumericsError:
        largest = float(np.abs(_as_f32(array, source)).max(initial=0.0))
        raise NumericsError(
            f"{piece.source}: holds {largest:g}, which {format_name} has no scale for",
            remedy=_REMEDY,
        ) from None
    return done.data.reshape(-1)


_REMEDY = "write it with {outtype='bf16'}"


def _overflow(largest: float, piece: Piece) -> NumericsError:
    return NumericsError(
        f"{piece.source}: holds {largest:g}; F16 ends at {_LARGEST_F16:g}", remedy=_REMEDY
    )


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
        return np.ascontiguousarray(values)
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
    if source == "f64":
        is_finite = bool(np.isfinite(array).all())
    elif source == "f32":
        largest = int((array.view(np.uint32) & np.uint32(_MAGNITUDE_32)).max(initial=0))
        is_finite = largest < _INFINITY_F32
    else:
        largest = int((array.view(np.uint16) & np.uint16(_MAGNITUDE_16)).max(initial=0))
        is_finite = largest < (_INFINITY_F16 if source == "f16" else _INFINITY_BF16)
    if not is_finite:
        raise NumericsError(f"{piece.source}: holds NaN or infinity; the checkpoint is damaged")


def _as_f32(array: Array, source: str) -> FloatArray:
    if source == "bf16":
        wide = array.astype(np.uint32)
        wide <<= np.uint32(16)
        return wide.view(np.float32)
    with np.errstate(over="ignore"):
        return array.astype(np.float32)


def _bf16_to_f16(bits: _Bits, piece: Piece) -> npt.NDArray[np.float16]:
    """Convert exactly where F16 is as fine; numbers below 2^-14 are rounded.

    numpy's own conversions by way of F32 take ten times as long.
    """
    magnitude = bits & np.uint16(_MAGNITUDE_16)
    if int(magnitude.max(initial=0)) >= _BEHIND_SHIFTED:
        raise _overflow(float(np.abs(_as_f32(bits, "bf16")).max()), piece)
    is_small = magnitude < _SMALLEST_SHIFTED
    magnitude -= np.uint16(_EXPONENTS_APART)
    magnitude <<= np.uint16(3)
    magnitude |= bits & np.uint16(~_MAGNITUDE_16 & 0xFFFF)
    halves = magnitude.view(np.float16)
    halves[is_small] = _as_f32(bits[is_small], "bf16").astype(np.float16)
    return halves


def _f32_to_bf16(numbers: FloatArray, piece: Piece) -> _Bits:
    """Round to nearest, ties to even."""
    bits = np.ascontiguousarray(numbers).view(np.uint32)
    odd = bits >> np.uint32(16)
    odd &= np.uint32(1)
    odd += np.uint32(0x7FFF)
    odd += bits
    odd >>= np.uint32(16)
    rounded = odd.astype(np.uint16)
    if int((rounded & np.uint16(_MAGNITUDE_16)).max(initial=0)) >= _INFINITY_BF16:
        raise NumericsError(
            f"{piece.source}: holds numbers beyond BF16's largest",
            remedy="write it with {outtype='f32'}",
        )
    return rounded


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
