"""Counts of firing neurons, from the bits of `Ops.ffn_firing`."""

import numpy as np
import numpy.typing as npt

from powerinfer import _core
from powerinfer.values import ByteArray

__all__ = ["count_fired"]


def count_fired(fired: ByteArray, counts: npt.NDArray[np.int64]) -> None:
    """Add to each neuron's count the tokens for which it fires.

    Args:
        fired: u8[num_tokens, ceil(num_neurons / 8)]; neuron i has bit ``i % 8``, the lowest first,
            of byte ``i // 8``.
        counts: i64[num_neurons], added to.

    Raises:
        ShapeError: the sizes differ.
        ValueError: there are bits beyond the last neuron.
    """
    _core.count_fired(fired, counts)
