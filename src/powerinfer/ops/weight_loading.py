"""The part of a backend that makes handles of a file's weights, before anything is computed."""

from collections.abc import Sequence
from typing import Protocol

from powerinfer.gguf import Tensor
from powerinfer.ops.operands import FFN, MatrixUse, NeuronPredictor
from powerinfer.ops.type_parameters import MatrixT, PreparedFFNT, PreparedPredictorT, VectorT
from powerinfer.values import FloatArray

__all__ = ["LoadsWeights"]


class LoadsWeights(Protocol[MatrixT, VectorT, PreparedFFNT, PreparedPredictorT]):
    """Makes handles of weights and describes them; part of `powerinfer.ops.protocol.Ops`."""

    def matrix(self, tensor: Tensor, use: MatrixUse) -> MatrixT:
        """Prepare a weight matrix [rows, columns]; may keep a view of `tensor.data`.

        Raises:
            UnsupportedError: the tensor's format has no kernel here.
            ShapeError: the tensor is not two-dimensional.
        """
        ...

    def vector(self, tensor: Tensor) -> VectorT:
        """Prepare a norm weight or bias as f32[n]."""
        ...

    def expert_matrix(self, tensors: Sequence[Tensor], use: MatrixUse) -> MatrixT:
        """Prepare the matrices of all experts as one: [num_experts * rows, columns].

        Args:
            tensors: one [num_experts, rows, columns], or one [rows, columns] per expert.
            use: how it is read.

        Raises:
            UnsupportedError: a tensor's format has no kernel here.
            ShapeError: a tensor has other dimensions, or they differ in shape or format.
        """
        ...

    def expert_vector(self, tensor: Tensor) -> VectorT:
        """Prepare the biases of all experts, [num_experts, n], as f32[num_experts * n]."""
        ...

    def constant(self, values: FloatArray) -> VectorT:
        """Prepare f32[n] that comes from no file."""
        ...

    def vector_values(self, vector: VectorT) -> FloatArray:
        """The f32[n] of a vector."""
        ...

    def matrix_bytes(self, matrix: MatrixT) -> int:
        """Bytes read when every row of `matrix` is used once."""
        ...

    def matrix_shape(self, matrix: MatrixT) -> tuple[int, int]:
        """Rows and columns; of a copy made by `recode` the columns as padded."""
        ...

    def matrix_format(self, matrix: MatrixT) -> str:
        """Name of the weight format of `matrix`, whatever layout the backend gave it."""
        ...

    def recode(self, matrix: MatrixT, format_name: str) -> MatrixT:
        """A copy of a matrix in another weight format, for predictors.

        Columns are padded with zeros to whole blocks of the format. The copy lives in memory of
        the backend's own, until it is dropped.

        Raises:
            UnsupportedError: there is no encoder for the format.
            NumericsError: a row holds NaN, infinity or numbers beyond the format's scale.
        """
        ...

    def copy_statistics(
        self, matrix: MatrixT, copy: MatrixT, mean: FloatArray, variance: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """What a copy made by `recode` loses on inputs with these statistics.

        Args:
            matrix: [rows, columns], the original.
            copy: [rows, columns or more], the copy.
            mean: f32[columns], mean of the input.
            variance: f32[columns], variance of the input.

        Returns:
            offset f32[rows] = matrix @ mean, and noise f32[rows], the standard deviation of
            (matrix - copy) @ (input - mean) with independent inputs; never 0. For `sign` copies
            noise counts that the input is binarised too.

        Raises:
            ShapeError: the sizes do not fit each other.
        """
        ...

    def ffn_weights(
        self, ffn: FFN[MatrixT, VectorT, PreparedFFNT | None, PreparedPredictorT]
    ) -> FFN[MatrixT, VectorT, PreparedFFNT, PreparedPredictorT]:
        """Return `ffn` with `native` filled in; called once per layer at load.

        Raises:
            ShapeError: router and matrices do not fit each other.
            UnsupportedError: it cannot be run as asked.
        """
        ...

    def neuron_predictor(
        self, predictor: NeuronPredictor[MatrixT, VectorT, PreparedPredictorT | None]
    ) -> NeuronPredictor[MatrixT, VectorT, PreparedPredictorT]:
        """Return `predictor` with `native` filled in.

        Raises:
            ShapeError: its matrices do not fit each other.
        """
        ...
