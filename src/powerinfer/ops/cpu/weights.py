"""Weights of the native CPU backend: their place in memory and their handles.

Weights stay in the mapped file. Matrices in `REPACKED_FORMATS`, and on request all others, are
copied into anonymous memory, and the pages of the file they came from are given back.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from powerinfer import _core
from powerinfer.errors import ShapeError, UnsupportedError
from powerinfer.gguf import Tensor
from powerinfer.ops.cpu.cut_activation import silent_below
from powerinfer.ops.cpu.handles import NativeFFN, NativePredictor
from powerinfer.ops.cpu.mapped_pages import copy_to_huge_pages, release_pages
from powerinfer.ops.expert_tensors import as_rows, check_expert_biases, check_expert_tensors
from powerinfer.ops.operands import MatrixUse, Router
from powerinfer.quant import get_format, type_of_name
from powerinfer.values import ByteArray, FloatArray, IntArray

__all__ = ["FORMATS", "REPACKED_FORMATS", "NativeWeights"]

FORMATS = tuple(name for name in _core.formats() if type_of_name(name) is not None)
"""Formats of files that have kernels (cpp/quant/format_list.inc)."""
REPACKED_FORMATS = frozenset(_core.repacked_formats())
"""Formats that are converted to a faster layout at load (cpp/quant/superblock.h)."""


class NativeWeights:
    """`powerinfer.ops.protocol.WeightLoader` of the native CPU backend; see there for shapes."""

    def __init__(self, team: _core.ThreadTeam, *, repack: bool, in_place: bool) -> None:
        """Start without weights; the arguments are those of `NativeOps`."""
        self._team = team
        self._arena = _core.Arena()
        self._repack = repack
        self._in_place = in_place

    def matrix(self, tensor: Tensor, use: MatrixUse) -> _core.Matrix:
        """View a weight matrix in the mapped file, or copy it."""
        if len(tensor.shape) != 2:
            raise ShapeError(f"{tensor.name} must be a matrix, its shape is {list(tensor.shape)}")
        matrix, is_packed = _viewed(tensor), self._is_packed(tensor)
        if use is MatrixUse.EMBEDDING or (self._in_place and not is_packed):
            return matrix
        if is_packed:
            matrix = _core.repack(self._team, matrix, self._arena)
        else:
            copy = copy_to_huge_pages(tensor.data)
            matrix = _core.Matrix(copy, tensor.format, matrix.rows, matrix.columns)
        release_pages(tensor.data)
        return matrix

    def vector(self, tensor: Tensor) -> _core.Vector:
        """Decode a norm weight or bias to f32[n]."""
        if len(tensor.shape) != 1:
            raise ShapeError(f"{tensor.name} must be a vector, its shape is {list(tensor.shape)}")
        return _core.Vector(np.ascontiguousarray(tensor.decode()))

    def expert_matrix(self, tensors: Sequence[Tensor], use: MatrixUse) -> _core.Matrix:
        """Join the matrices of all experts; copies of an expert are made once it is chosen."""
        check_expert_tensors(tensors)
        first, is_packed = tensors[0], self._is_packed(tensors[0])
        if len(tensors) == 1 and not is_packed:
            return self.matrix(as_rows(first), use)
        pieces = [_viewed(as_rows(tensor)) for tensor in tensors]
        return _core.expert_matrix(pieces, first.shape[-2], self._arena, is_packed)

    def expert_vector(self, tensor: Tensor) -> _core.Vector:
        """Decode the biases of all experts."""
        check_expert_biases(tensor)
        return self.constant(tensor.decode().reshape(-1))

    def constant(self, values: FloatArray) -> _core.Vector:
        """Wrap f32[n]."""
        return _core.Vector(np.ascontiguousarray(values, np.float32))

    def vector_values(self, vector: _core.Vector) -> FloatArray:
        """Return the numbers of a vector."""
        return vector.values

    def matrix_bytes(self, matrix: _core.Matrix) -> int:
        """Return the bytes of the whole matrix in its layout here."""
        return matrix.nbytes

    def matrix_shape(self, matrix: _core.Matrix) -> tuple[int, int]:
        """Return rows and columns."""
        return matrix.rows, matrix.columns

    def matrix_format(self, matrix: _core.Matrix) -> str:
        """Return the format of `encoded_rows`: that of the tensor, or of `recode`."""
        return _core.encoded_format(matrix)

    def encoded_rows(
        self, matrix: _core.Matrix, ids: IntArray | None = None, out: ByteArray | None = None
    ) -> ByteArray:
        """Copy rows in the format `matrix_format`, whatever their layout here: u8[n, row_bytes].

        Args:
            ids: i32[n], rows in the wanted order; None for all.
            out: u8[n, row_bytes], written to; None for a new array.

        Raises:
            IndexError: there is no such row.
        """
        rows = np.arange(matrix.rows, dtype=np.int32) if ids is None else np.ascontiguousarray(ids)
        if out is None:
            known = get_format(_core.encoded_format(matrix))
            out = np.empty((len(rows), known.num_bytes(matrix.columns)), np.uint8)
        _core.encoded_rows(self._team, matrix, rows, out)
        return out

    def ffn_weights(self, ffn: NativeFFN) -> NativeFFN:
        """Bundle the weights into one handle.

        Raises:
            TypeError: its predictor was not prepared; the block would run without it.
        """
        if ffn.predictor is not None and ffn.predictor.native is None:
            raise TypeError("the predictor of an FFN must be prepared by neuron_predictor first")
        if ffn.is_exact_sparse and not ffn.activation.is_sparse:
            raise UnsupportedError(f"an FFN with {ffn.activation} has no neurons to skip")
        return replace(ffn, native=_native_ffn(ffn))

    def recode(self, matrix: _core.Matrix, format_name: str) -> _core.Matrix:
        """Encode a copy into the backend's memory."""
        return _core.recode(self._team, matrix, format_name, self._arena)

    def copy_statistics(
        self, matrix: _core.Matrix, copy: _core.Matrix, mean: FloatArray, variance: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Compute offset and noise per row."""
        offset, noise = np.empty((2, matrix.rows), np.float32)
        _core.copy_statistics(self._team, matrix, copy, mean, variance, offset, noise)
        return offset, noise

    def neuron_predictor(self, predictor: NativePredictor) -> NativePredictor:
        """Bundle the matrices into one handle."""
        stages = [(stage.matrix, stage.bias, stage.threshold) for stage in predictor.stages]
        native = _core.NeuronPredictor(
            predictor.fc1, predictor.center, stages, predictor.num_experts
        )
        return replace(predictor, native=native)

    def _is_packed(self, tensor: Tensor) -> bool:
        is_known = tensor.format in REPACKED_FORMATS
        return self._repack and is_known and _core.can_repack(tensor.format, tensor.shape[-1])


def _viewed(tensor: Tensor) -> _core.Matrix:
    """Create a view of a weight matrix.

    Raises:
        UnsupportedError: its format has no kernels.
    """
    if tensor.format not in FORMATS:
        raise UnsupportedError(
            f"tensor {tensor.name} has the type {tensor.format}, for which there are no "
            f"kernels. Supported: {', '.join(FORMATS)}."
        )
    rows, columns = tensor.shape
    return _core.Matrix(tensor.data, tensor.format, rows, columns)


def _native_ffn(ffn: NativeFFN) -> _core.FFN:
    """Create a handle of the weights of a block."""
    threshold, dip = silent_below(ffn.activation)
    return _core.FFN(
        (None, None) if ffn.gate is None else (ffn.gate.matrix, ffn.gate.bias),
        (ffn.up.matrix, ffn.up.bias),
        (ffn.down.matrix, ffn.down.bias),
        ffn.activation.kind.value,
        threshold,
        ffn.is_down_transposed,
        ffn.is_exact_sparse,
        None if ffn.router is None else _native_router(ffn.router),
        dip,
    )


def _native_router(router: Router[_core.Matrix, _core.Vector]) -> _core.Router:
    linear = router.linear
    if not 1 <= router.num_used <= router.num_experts or linear.matrix.rows != router.num_experts:
        raise ShapeError(
            f"a router of {linear.matrix.rows} rows cannot choose {router.num_used} of "
            f"{router.num_experts} experts"
        )
    rule = router.rule.value, router.num_used, router.is_normalized
    scales = router.scale, router.expert_scale
    return _core.Router(linear.matrix, linear.bias, *rule, router.selection_bias, *scales)
