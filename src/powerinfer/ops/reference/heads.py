"""The head that computes the wanted logits, in numpy: a part of the reference."""

from collections.abc import Sequence

import numpy as np

from powerinfer.errors import ShapeError
from powerinfer.ops.head_ops import UNWANTED_LOGIT, HeadCopy, WantedLogits
from powerinfer.ops.operands import Linear
from powerinfer.ops.reference.matrix import (
    DoubleArray,
    ReferenceLinear,
    ReferenceMatrix,
    narrow,
    product,
)
from powerinfer.values import FloatArray

__all__ = ["ReferenceHeads"]

# Far more than the rounding of sums in f64 and of their results to f32.
_ROUNDING = 2.0**-20


class ReferenceHeads:
    """`powerinfer.ops.head_ops.HeadOps` in numpy; activations are not rounded here."""

    def screened_head(
        self,
        x: FloatArray,
        head: ReferenceLinear,
        copy: HeadCopy[ReferenceMatrix],
        wanted: Sequence[WantedLogits],
    ) -> tuple[FloatArray, int]:
        """Compute all logits, and keep those that the bound of the copy's error lets pass."""
        vocab_size, size = head.matrix.values.shape
        if len(copy.columns) < size or copy.norms.shape != (2, vocab_size):
            raise ShapeError(f"the copy of a head of {vocab_size} rows of {size} does not fit it")
        logits = narrow(product(x, head))
        ordered = x[:, copy.columns]
        guess = product(ordered, Linear(copy.matrix, head.bias))
        num_double = len(copy.columns) - size
        double, single = ordered[:, :num_double], ordered[:, num_double:size]
        factors = copy.double_error * _norms(double) + _ROUNDING * _norms(x)
        most = guess + _norms(single) * copy.norms[0] + factors * copy.norms[1]
        out = np.full_like(logits, UNWANTED_LOGIT)
        for row, bounds, given, each in zip(out, most, logits, wanted, strict=True):
            # NaN is sorted last, and nothing is below it.
            lowest = np.sort(given)[-min(each.count, vocab_size)] - each.margin
            is_wanted = ~(bounds < lowest)
            row[is_wanted] = given[is_wanted]
        return out, int(np.count_nonzero(out != UNWANTED_LOGIT))


def _norms(x: FloatArray) -> DoubleArray:
    norms: DoubleArray = np.linalg.norm(x.astype(np.float64), axis=1, keepdims=True)
    return norms
