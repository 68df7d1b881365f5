"""Matrices of the numpy reference and products with them, in f64."""

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from powerinfer.errors import ShapeError
from powerinfer.ops.float_errors import ignore_float_errors
from powerinfer.ops.protocol import Linear
from powerinfer.values import FloatArray

__all__ = [
    "DoubleArray",
    "Mask",
    "ReferenceLinear",
    "ReferenceMatrix",
    "add_bias",
    "bytes_of_rows",
    "narrow",
    "product",
]

DoubleArray = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ReferenceMatrix:
    """A decoded weight matrix.

    Attributes:
        values: f32[rows, columns].
        num_bytes: size of the encoded matrix, the bytes that a real backend would read.
        is_binary: products use only the signs of their input (format `sign`).
        format_name: weight format that it was decoded from.
    """

    values: FloatArray
    num_bytes: int
    is_binary: bool = False
    format_name: str = "f32"

    @property
    def row_bytes(self) -> int:
        """Encoded bytes of one row."""
        return self.num_bytes // max(1, len(self.values))

    def part(self, number: int, count: int) -> "ReferenceMatrix":
        """Return one of `count` equal, consecutive groups of rows."""
        size = len(self.values) // count
        values = self.values[number * size : (number + 1) * size]
        return replace(self, values=values, num_bytes=size * self.row_bytes)


ReferenceLinear: TypeAlias = Linear[ReferenceMatrix, FloatArray]


@ignore_float_errors
def product(x: FloatArray, layer: ReferenceLinear) -> DoubleArray:
    """Compute x @ matrix.T + bias in f64; a binary matrix multiplies the signs of x."""
    weights = layer.matrix.values.astype(np.float64)
    if x.shape[1] != weights.shape[1]:
        raise ShapeError(f"input of shape {x.shape} does not fit a matrix {weights.shape}")
    inputs = _binarized(x) if layer.matrix.is_binary else x
    return add_bias(inputs.astype(np.float64) @ weights.T, layer)


def add_bias(values: DoubleArray, layer: ReferenceLinear) -> DoubleArray:
    """Add the bias of a layer to its product, if it has one."""
    return values if layer.bias is None else values + layer.bias


@ignore_float_errors
def narrow(x: DoubleArray) -> FloatArray:
    """Round to f32."""
    return x.astype(np.float32)


def bytes_of_rows(matrix: ReferenceMatrix, mask: Mask) -> int:
    """Count the bytes of the rows that any token uses, by bool[num_tokens, rows]."""
    return int(mask.any(axis=0).sum()) * matrix.row_bytes


def _binarized(x: FloatArray) -> FloatArray:
    """Replace x by its signs times the mean magnitude of the row; trailing zeros are padding."""
    numbers = np.arange(1, x.shape[1] + 1)
    length = np.where(x != 0, numbers, 0).max(axis=1, keepdims=True, initial=0)
    mean = np.abs(x).sum(axis=1, keepdims=True) / np.maximum(length, 1)
    signs = np.where(x < 0, -1.0, 1.0)
    return np.where(numbers <= length, signs * mean, 0.0).astype(np.float32)
