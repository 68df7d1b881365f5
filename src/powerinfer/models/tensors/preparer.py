"""Handing a file's tensors to a backend, one by one."""

from collections.abc import Callable, Sequence

import numpy as np

from powerinfer.gguf import Tensor
from powerinfer.models.tensors.tensor_lookup import decoded
from powerinfer.ops.backend import Backend, Matrix, SomeLinear, Vector
from powerinfer.ops.protocol import Linear, MatrixUse
from powerinfer.quant import format_names

__all__ = ["Preparer", "Progress"]

Progress = Callable[[int, int], None]
"""Called with (bytes prepared, bytes in all) after each tensor."""

# Matrices with shorter rows are multiplied in f32, up to this size. Products with quantized weights
# round activations to int8 in blocks of 32. A short row sums the errors of few blocks, which do not
# average out: in keys and values of the first layer they moved a perplexity by 0.8 %. Such small
# matrices cost no time.
_SHORT_ROW = 256
_MAX_SHORT_BYTES = 1 << 20
_FLOATS = {"f32", "f16", "bf16"}


class Preparer:
    """Hands tensors to a backend and reports progress."""

    def __init__(self, ops: Backend, *, progress: Progress | None, total_bytes: int) -> None:
        self.ops = ops
        self._progress = progress
        self._total_bytes = total_bytes
        self._done_bytes = 0

    def matrix(self, tensor: Tensor, use: MatrixUse) -> Matrix:
        """Prepare a matrix."""
        (stored,) = [tensor] if use is MatrixUse.EMBEDDING else _decoded_if_small([tensor])
        prepared = self.ops.matrix(stored, use)
        self._advance(tensor)
        return prepared

    def vector(self, tensor: Tensor) -> Vector:
        """Prepare a vector."""
        prepared = self.ops.vector(tensor)
        self._advance(tensor)
        return prepared

    def flat_vector(self, tensor: Tensor) -> Vector:
        """Prepare a small tensor of several dimensions as one vector, its rows side by side."""
        return self.vector(decoded(tensor, tensor.decode().reshape(-1)))

    def linear(
        self, tensors: dict[str, Tensor], name: str, use: MatrixUse = MatrixUse.DENSE
    ) -> SomeLinear:
        """Prepare `<name>.weight` and, if present, `<name>.bias`."""
        bias = tensors.get(f"{name}.bias")
        return Linear(
            self.matrix(tensors[f"{name}.weight"], use), None if bias is None else self.vector(bias)
        )

    def expert_linear(
        self, weights: Sequence[Tensor], bias: Tensor | None, use: MatrixUse
    ) -> SomeLinear:
        """Prepare all experts' tensors of one matrix, see `WeightLoader.expert_matrix`."""
        matrix = self.ops.expert_matrix(_decoded_if_small(weights), use)
        for tensor in weights if bias is None else (*weights, bias):
            self._advance(tensor)
        return Linear(matrix, None if bias is None else self.ops.expert_vector(bias))

    def _advance(self, tensor: Tensor) -> None:
        self._done_bytes += len(tensor.data)
        if self._progress is not None:
            self._progress(min(self._done_bytes, self._total_bytes), self._total_bytes)


def _decoded_if_small(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
    """Decode a small matrix with short rows to F32; others are returned unchanged."""
    first, num_elements = tensors[0], sum(tensor.num_elements for tensor in tensors)
    is_short = len(first.shape) >= 2 and first.shape[-1] < _SHORT_ROW
    if not is_short or num_elements * np.float32().itemsize > _MAX_SHORT_BYTES:
        return tensors
    formats = {tensor.format for tensor in tensors}
    if not formats.issubset(format_names()) or formats.issubset(_FLOATS):
        return tensors
    return [decoded(tensor, tensor.decode()) for tensor in tensors]
