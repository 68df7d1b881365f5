"""Columns of an encoded matrix as rows of another, in which a neuron has a row of `down`."""

import torch
from torch import Tensor

from powerinfer.errors import NumericsError
from powerinfer.ops.gpu.kernels.prompts import decoded
from powerinfer.ops.gpu.matrix import DeviceMatrix, upload_matrix
from powerinfer.values import ByteArray, IntArray

__all__ = ["write_columns"]

# Decoded numbers in flight at a time, see `matrix`.
_PIECE = 1 << 22


def write_columns(
    target: DeviceMatrix,
    ids: IntArray,
    encoded: ByteArray,
    format_name: str,
    columns: int,
    first: int,
) -> None:
    """Write columns of a piece of a matrix into rows of another.

    Args:
        target: floats [slots, hidden_size]; row s gets column ids[s], from element `first` on.
        ids: i32[at most slots], columns of the matrix.
        encoded: u8[rows, row_bytes], some rows of the matrix.
        format_name: encoding of the rows.
        columns: numbers in a row.
        first: number of the first of these rows.

    Raises:
        NumericsError: a number does not fit the f16 of `target`.
    """
    chosen = torch.from_numpy(ids.astype("int64")).to(target.device)
    step = max(1, _PIECE // columns)
    for start in range(0, len(encoded), step):
        piece = encoded[start : start + step]
        _write_turned(target, chosen, piece, format_name, columns, first + start)


def _write_turned(
    target: DeviceMatrix,
    chosen: Tensor,
    encoded: ByteArray,
    format_name: str,
    columns: int,
    first: int,
) -> None:
    piece = upload_matrix(encoded, format_name, columns, target.device)
    numbers = decoded(piece).index_select(1, chosen)
    turned = numbers.T.to(target.values.dtype)
    is_narrowed = turned.dtype == torch.float16 and numbers.dtype == torch.float32
    if is_narrowed and (turned.isinf() & numbers.T.isfinite()).any():
        raise NumericsError(
            f"a number of a {format_name} matrix is beyond the largest f16, which its columns "
            "would be kept in on the device; leave this model on the CPU"
        )
    target.values[: len(chosen), first : first + piece.rows] = turned
