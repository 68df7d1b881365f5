"""Encoding rows of weights (stand-in in numpy)."""

from dataclasses import dataclass

import numpy as np

from powerinfer.quant import get_format
from powerinfer.values import ByteArray, FloatArray

__all__ = ["EncodedRows", "encode_rows"]


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Rows in a format, and what encoding them changed."""

    data: ByteArray
    squared_error: float
    squared_sum: float


def encode_rows(
    source: ByteArray,
    source_format: str,
    target_format: str,
    row_length: int,
    *,
    importance: FloatArray | None = None,
    threads: int,
    kernels: str | None = None,
) -> EncodedRows:
    """Encode u8[rows, source_row_bytes] as u8[rows, row_bytes]."""
    values = get_format(source_format).decode(source)
    target = get_format(target_format)
    data = target.encode(values)
    with np.errstate(all="ignore"):
        difference = target.decode(data).astype(np.float64) - values
        return EncodedRows(
            data,
            float(np.vdot(difference, difference)),
            float(np.vdot(values.astype(np.float64), values)),
        )
