"""Inputs as products with packed weights see them on the GPU, for references in numpy."""

import numpy as np

from powerinfer.ops.gpu.formats import device_format
from powerinfer.values import FloatArray

__all__ = ["rounded_for"]


def rounded_for(format_name: str, x: FloatArray) -> FloatArray:
    """Round f32[num_tokens, columns] to int8 blocks of 32; unchanged if weights are floats there.

    Inputs of `sign` are rounded after they were binarised, which changes nothing.
    """
    if format_name == "sign" or not device_format(format_name).is_packed:
        return x
    num_tokens, columns = x.shape
    padded = np.pad(x, ((0, 0), (0, -columns % 32))).reshape(num_tokens, -1, 32)
    largest = np.abs(padded).max(axis=2, keepdims=True)
    factors = np.float32(127) / np.where(largest > 0, largest, np.float32(1))
    rounded: FloatArray = np.rint(padded * factors) * (largest / np.float32(127))
    return rounded.reshape(num_tokens, -1)[:, :columns]
