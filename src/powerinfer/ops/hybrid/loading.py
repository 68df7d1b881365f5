"""The half of the hybrid backend that prepares weights: all of them are the CPU's at first."""

from collections.abc import Sequence
from typing import TypeAlias, cast

from powerinfer.gguf import Tensor
from powerinfer.ops.cpu.handles import (
    NativeFFN,
    NativePredictor,
    PreparedNativeFFN,
    PreparedNativePredictor,
)
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.hybrid.decode import SplitFFN
from powerinfer.ops.hybrid.handles import (
    HybridLinear,
    HybridMatrix,
    HybridVector,
    host_linear,
    host_matrix,
    host_vector,
)
from powerinfer.ops.protocol import FFN, ActiveIds, MatrixUse, NeuronPredictor
from powerinfer.values import FloatArray, IntArray

__all__ = ["CPULoading", "HybridFFN", "HybridPredictor", "cpu_ffn"]

HybridPredictor: TypeAlias = NeuronPredictor[HybridMatrix, HybridVector, PreparedNativePredictor]
HybridFFN: TypeAlias = FFN[
    HybridMatrix, HybridVector, PreparedNativeFFN | SplitFFN, PreparedNativePredictor
]


class CPULoading:
    """Operations of `powerinfer.ops.protocol.Ops` about weights, by the CPU backend.

    A handle that was uploaded since stands for its original here.
    """

    cpu: NativeOps

    def matrix(self, tensor: Tensor, use: MatrixUse) -> HybridMatrix:
        """Prepare a weight matrix in host memory."""
        return self.cpu.matrix(tensor, use)

    def vector(self, tensor: Tensor) -> HybridVector:
        """Prepare a norm weight or bias in host memory."""
        return self.cpu.vector(tensor)

    def constant(self, values: FloatArray) -> HybridVector:
        """Hold f32[n] in host memory."""
        return self.cpu.constant(values)

    def vector_values(self, vector: HybridVector) -> FloatArray:
        """The f32[n] of a vector, wherever it lies."""
        return self.cpu.vector_values(host_vector(vector))

    def matrix_bytes(self, matrix: HybridMatrix) -> int:
        """Bytes of the original."""
        return self.cpu.matrix_bytes(host_matrix(matrix))

    def matrix_shape(self, matrix: HybridMatrix) -> tuple[int, int]:
        """Rows and columns of the original."""
        return self.cpu.matrix_shape(host_matrix(matrix))

    def matrix_format(self, matrix: HybridMatrix) -> str:
        """Of the original."""
        return self.cpu.matrix_format(host_matrix(matrix))

    def ffn_weights(
        self,
        ffn: FFN[
            HybridMatrix, HybridVector, PreparedNativeFFN | SplitFFN | None, PreparedNativePredictor
        ],
    ) -> HybridFFN:
        """Bundle weights for the CPU; `models.placing` makes blocks of both devices of them."""
        return self.cpu.ffn_weights(cpu_ffn(ffn))

    def recode(self, matrix: HybridMatrix, format_name: str) -> HybridMatrix:
        """Encode a copy in host memory."""
        return self.cpu.recode(host_matrix(matrix), format_name)

    def copy_statistics(
        self, matrix: HybridMatrix, copy: HybridMatrix, mean: FloatArray, variance: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Offset and noise per row of a copy in host memory."""
        return self.cpu.copy_statistics(host_matrix(matrix), host_matrix(copy), mean, variance)

    def neuron_predictor(
        self,
        predictor: NeuronPredictor[HybridMatrix, HybridVector, PreparedNativePredictor | None],
    ) -> HybridPredictor:
        """Bundle the matrices of a predictor for the CPU."""
        return self.cpu.neuron_predictor(cast("NativePredictor", predictor))

    def predict(self, x: FloatArray, predictor: HybridPredictor) -> ActiveIds:
        """Neurons that pass, found by the CPU."""
        return self.cpu.predict(x, cast("NativePredictor", predictor))

    def embed(self, table: HybridMatrix, token_ids: IntArray) -> FloatArray:
        """Rows of the embedding, which is always in host memory."""
        return self.cpu.embed(host_matrix(table), token_ids)

    def host_linears(self, x: FloatArray, layers: Sequence[HybridLinear]) -> list[FloatArray]:
        """Products on the CPU, of an array in host memory."""
        return self.cpu.linear(x, [host_linear(layer) for layer in layers])


def cpu_ffn(ffn: FFN[HybridMatrix, HybridVector, object, PreparedNativePredictor]) -> NativeFFN:
    """The same block as the CPU backend knows it: blocks hold its matrices and vectors only.

    What is uploaded of a block lies in `SplitFFN`, and predictors are made of the CPU's copies.
    """
    return cast("NativeFFN", ffn)
