"""Layout ``rows``: the down projection transposed, so that neuron i is row i of all FFN matrices.

``blk.N.ffn_down.weight`` [hidden_size, intermediate_size] becomes ``blk.N.ffn_down_t.weight``
[intermediate_size, hidden_size]; the bias is renamed with it, as in PowerInfer's files. Plain
numbers are moved; blocks are encoded anew, since they run along the other dimension afterwards.
"""

import re
from collections.abc import Iterator
from functools import partial

import numpy as np
import numpy.typing as npt

from powerinfer.convert.layout import ErrorSum, Layout, PackedTensor
from powerinfer.errors import NumericsError
from powerinfer.gguf import Tensor
from powerinfer.quant import QuantFormat, get_format

__all__ = ["LAYOUT"]

_DOWN = re.compile(r"(blk\.\d+\.ffn_down)\.(weight|bias)")
_WITHOUT_BLOCKS = ("f32", "f16", "bf16")
_FALLBACKS = ("q8_0", "f16")

# A multiple of every block size, so that a range of columns is whole blocks in every row; with
# 8192 rows one step holds 16 MiB of f32.
_COLUMNS_PER_STEP = 512


def _pack(tensor: Tensor) -> PackedTensor | None:
    match = _DOWN.fullmatch(tensor.name)
    if match is None:
        return None
    name = f"{match[1]}_t.{match[2]}"
    if match[2] == "bias" or len(tensor.shape) != 2:
        return PackedTensor(name, tensor.shape, tensor.format, lambda: iter([tensor.data]), tensor)
    shape = tensor.shape[::-1]
    if tensor.format in _WITHOUT_BLOCKS:
        chunks = partial(_transposed, tensor)
        return PackedTensor(name, shape, tensor.format, chunks, tensor)
    target = _target_format(get_format(tensor.format), shape[-1])
    error = ErrorSum()
    again = partial(_encoded_again, tensor, target, error)
    return PackedTensor(name, shape, target.name, again, tensor, error)


def _target_format(source: QuantFormat, row: int) -> QuantFormat:
    """The same format if it has an encoder and fits rows of this length, else the next best."""
    for fmt in (source, *map(get_format, _FALLBACKS)):
        if fmt.can_encode and row % fmt.block_size == 0:
            return fmt
    raise AssertionError("f16 fits every row")


def _transposed(tensor: Tensor) -> Iterator[npt.NDArray[np.uint8]]:
    num_rows, num_columns = tensor.shape
    item_bytes = get_format(tensor.format).block_bytes
    items = tensor.data.reshape(num_rows, num_columns, item_bytes)
    for start in range(0, num_columns, _COLUMNS_PER_STEP):
        step = items[:, start : start + _COLUMNS_PER_STEP]
        yield np.ascontiguousarray(step.transpose(1, 0, 2))


def _encoded_again(
    tensor: Tensor, target: QuantFormat, error: ErrorSum
) -> Iterator[npt.NDArray[np.uint8]]:
    source = get_format(tensor.format)
    rows = tensor.rows
    for start in range(0, tensor.shape[1], _COLUMNS_PER_STEP):
        stop = min(start + _COLUMNS_PER_STEP, tensor.shape[1])
        step = rows[:, source.num_bytes(start) : source.num_bytes(stop)]
        before = np.ascontiguousarray(source.decode(step).T)
        encoded, after = _encode(before, target, f"{tensor.file}: tensor {tensor.name}")
        error.add(before, after)
        yield encoded


def _encode(
    values: npt.NDArray[np.float32], target: QuantFormat, where: str
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]]:
    """Encoded bytes, and the numbers they stand for."""
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


LAYOUT = Layout("rows", _pack)
