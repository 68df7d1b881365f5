"""Re-encoding of a model file's tensors, or reordering of their rows, step by step."""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from powerinfer.convert.layout import ErrorSum
from powerinfer.errors import NumericsError
from powerinfer.gguf import Tensor
from powerinfer.quant import QuantFormat, get_format

__all__ = ["WITHOUT_BLOCKS", "encoded_again", "transposed"]

WITHOUT_BLOCKS = ("f32", "f16", "bf16")
"""Formats whose numbers can be moved one by one."""

# A multiple of every block size, so that a range of columns is whole blocks in every row; with 8192
# rows one step holds 16 MiB of f32.
_COLUMNS_PER_STEP = 512
_ELEMENTS_PER_STEP = 1 << 22


def transposed(matrices: Sequence[Tensor]) -> Iterator[npt.NDArray[np.uint8]]:
    """Yield the columns of matrices in a format without blocks as rows."""
    for matrix in matrices:
        num_rows, num_columns = matrix.shape
        item_bytes = get_format(matrix.format).block_bytes
        items = matrix.data.reshape(num_rows, num_columns, item_bytes)
        for start in range(0, num_columns, _COLUMNS_PER_STEP):
            step = items[:, start : start + _COLUMNS_PER_STEP]
            yield np.ascontiguousarray(step.transpose(1, 0, 2))


def encoded_again(
    matrices: Sequence[Tensor], target: QuantFormat, error: ErrorSum, *, is_transposed: bool
) -> Iterator[npt.NDArray[np.uint8]]:
    """Re-encode matrices.

    Args:
        matrices: [rows, columns] each; any shape if not transposed.
        error: accumulates the changes.

    Raises:
        NumericsError: NaN, infinity, or numbers outside the format's range; the message names the
            tensor.
    """
    for matrix in matrices:
        source = get_format(matrix.format)
        for step in _columns(matrix, source) if is_transposed else _rows(matrix):
            values = source.decode(step)
            before = np.ascontiguousarray(values.T) if is_transposed else values
            encoded, after = _encode(before, target, f"{matrix.file}: tensor {matrix.name}")
            error.add(before, after)
            yield encoded


def _columns(matrix: Tensor, source: QuantFormat) -> Iterator[npt.NDArray[np.uint8]]:
    for start in range(0, matrix.shape[1], _COLUMNS_PER_STEP):
        stop = min(start + _COLUMNS_PER_STEP, matrix.shape[1])
        yield matrix.rows[:, source.num_bytes(start) : source.num_bytes(stop)]


def _rows(tensor: Tensor) -> Iterator[npt.NDArray[np.uint8]]:
    rows = tensor.rows
    count = max(1, _ELEMENTS_PER_STEP // max(1, tensor.shape[-1]))
    for start in range(0, len(rows), count):
        yield rows[start : start + count]


def _encode(
    values: npt.NDArray[np.float32], target: QuantFormat, where: str
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """Return the encoded bytes and the numbers they represent."""
    try:
        encoded = target.encode(values)
    except NumericsError as problem:
        raise NumericsError(f"{where}: {problem}") from None
    after = target.decode(encoded)
    if not np.isfinite(after).all():
        raise NumericsError(
            f"{where}: holds numbers that {target.name} cannot: NaN, infinite, huge"
        )
    return encoded, after
