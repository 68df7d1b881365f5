"""The head that computes the wanted logits: a part of the native CPU backend."""

from collections.abc import Sequence

import numpy as np

from powerinfer import _core
from powerinfer.ops.cpu.handles import NativeLinear
from powerinfer.ops.cpu.mixers import NativeMixers
from powerinfer.ops.head_ops import HeadCopy, WantedLogits
from powerinfer.values import FloatArray

__all__ = ["NativeHeads"]


class NativeHeads(NativeMixers):
    """`powerinfer.ops.head_ops.HeadOps` on a team of threads; see there for shapes."""

    def screened_head(
        self,
        x: FloatArray,
        head: NativeLinear,
        copy: HeadCopy[_core.Matrix],
        wanted: Sequence[WantedLogits],
    ) -> tuple[FloatArray, int]:
        """Multiply the copy, then the rows whose bound reaches far enough, in one call."""
        out = np.empty((len(x), head.matrix.rows), np.float32)
        counts = np.array([each.count for each in wanted], np.int64)
        margins = np.array([each.margin for each in wanted], np.float32)
        parts = copy.matrix, copy.columns, copy.norms, copy.double_error
        computed = _core.screened_head(
            self._team, x, head.matrix, head.bias, parts, counts, margins, out
        )
        return out, computed
