"""Neurons that are columns of a file's matrix, as rows on the device.

The matrix is sent as it lies, some rows at a time, and turned there: the host only copies bytes.
"""

import torch

from powerinfer.errors import NumericsError
from powerinfer.ops.gpu.matrix import DeviceMatrix, decoded, upload_matrix
from powerinfer.values import ByteArray, IntArray

__all__ = ["transposed", "write_columns"]


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
        target: floats [slots, hidden_size]; row s becomes column ids[s], from its element `first`.
        ids: i32[at most slots], columns of the matrix.
        encoded: u8[rows, row_bytes], some rows of the matrix.
        format_name: its encoding.
        columns: numbers in a row.
        first: number of the first of these rows.

    Raises:
        NumericsError: a number does not fit the f16 of `target`.
    """
    piece = upload_matrix(encoded, format_name, columns, target.device)
    chosen = torch.from_numpy(ids.astype("int64")).to(target.device)
    numbers = decoded(piece, 0, piece.rows).index_select(1, chosen)
    turned = numbers.T.to(target.values.dtype)
    is_narrowed = turned.dtype == torch.float16 and numbers.dtype == torch.float32
    if is_narrowed and (turned.isinf() & numbers.T.isfinite()).any():
        raise NumericsError(
            f"a number of a {format_name} matrix is beyond the largest f16, which its columns "
            "would be kept in on the device; leave this model on the CPU"
        )
    target.values[: len(ids), first : first + piece.rows] = turned


def transposed(matrix: DeviceMatrix) -> DeviceMatrix:
    """The same numbers the other way round, as floats: [columns, rows]."""
    values = decoded(matrix, 0, matrix.rows).T.contiguous()
    name = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}[values.dtype]
    return DeviceMatrix(name, matrix.columns, matrix.rows, values, None, 0, 0.0)
