"""Encoding of rows of weights by the native encoders."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerinfer import _core
from powerinfer.errors import ShapeError
from powerinfer.ops.cpu.machine import start_team
from powerinfer.quant import get_format
from powerinfer.quant.format import check_importance

__all__ = ["EncodedRows", "encode_rows"]


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Rows in another format, and their error.

    Attributes:
        data: u8[rows, row_bytes].
        squared_error: sum of (decoded - given)^2 over all numbers.
        squared_sum: sum of given^2. Both sums have a fixed order, whatever the number of threads.
    """

    data: npt.NDArray[np.uint8]
    squared_error: float
    squared_sum: float


def encode_rows(
    source: npt.NDArray[np.uint8],
    source_format: str,
    target_format: str,
    row_length: int,
    *,
    importance: npt.NDArray[np.float32] | None = None,
    threads: int,
    kernels: str | None = None,
) -> EncodedRows:
    """Encode rows with the same bytes as `QuantFormat.encode` of the target.

    Args:
        source: u8[rows, source_row_bytes], C-contiguous; at least one row.
        source_format: any format that the CPU computes with.
        target_format: a format with an encoder.
        row_length: numbers in a row, a multiple of the blocks of both formats.
        importance: f32[row_length], see `QuantFormat.encode`.
        threads: threads to encode with, 1 to 512, the caller included.
        kernels: name of a kernel table; None takes the best of this machine.

    Raises:
        UnsupportedError: the target has no encoder.
        ShapeError: sizes do not fit each other, or the formats' blocks.
        NumericsError: a number is NaN, infinite or beyond the target's scale (the message counts
            rows from 0), or an importance is negative or not finite.
        DeviceError: the number of threads is out of range, or there are no such kernels.
    """
    if source.ndim != 2:
        raise ShapeError(f"expected rows of bytes, got shape {source.shape}")
    if importance is not None:
        check_importance(importance, row_length)
    team = start_team(threads, kernels)
    matrix = _core.Matrix(source.reshape(-1), source_format, len(source), row_length)
    data = np.empty((len(source), get_format(target_format).num_bytes(row_length)), np.uint8)
    error, total = _core.encode_rows(team, matrix, target_format, importance, data)
    return EncodedRows(data, error, total)
