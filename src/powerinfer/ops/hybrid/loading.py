"""The half of the hybrid backend that prepares weights: all of them are the CPU's at first."""

from collections.abc import Sequence

from powerinfer.gguf import Tensor
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.hybrid.handles import host_handle, host_linear
from powerinfer.ops.protocol import (
    FFN,
    ActiveIds,
    Linear,
    Matrix,
    MatrixUse,
    NeuronPredictor,
    Vector,
)
from powerinfer.values import FloatArray, IntArray

__all__ = ["CPULoading"]


class CPULoading:
    """Operations of `powerinfer.ops.protocol.Ops` about weights, by the CPU backend.

    A handle that was uploaded since stands for its original here.
    """

    cpu: NativeOps

    def matrix(self, tensor: Tensor, use: MatrixUse) -> Matrix:
        """Prepare a weight matrix in host memory."""
        return self.cpu.matrix(tensor, use)

    def vector(self, tensor: Tensor) -> Vector:
        """Prepare a norm weight or bias in host memory."""
        return self.cpu.vector(tensor)

    def constant(self, values: FloatArray) -> Vector:
        """Hold f32[n] in host memory."""
        return self.cpu.constant(values)

    def vector_values(self, vector: Vector) -> FloatArray:
        """The f32[n] of a vector, wherever it lies."""
        return self.cpu.vector_values(host_handle(vector))

    def matrix_bytes(self, matrix: Matrix) -> int:
        """Bytes of the original."""
        return self.cpu.matrix_bytes(host_handle(matrix))

    def matrix_shape(self, matrix: Matrix) -> tuple[int, int]:
        """Rows and columns of the original."""
        return self.cpu.matrix_shape(host_handle(matrix))

    def ffn_weights(self, ffn: FFN) -> FFN:
        """Bundle weights for the CPU; `models.placing` makes blocks of both devices of them."""
        return self.cpu.ffn_weights(ffn)

    def recode(self, matrix: Matrix, format_name: str) -> Matrix:
        """Encode a copy in host memory."""
        return self.cpu.recode(host_handle(matrix), format_name)

    def copy_statistics(
        self, matrix: Matrix, copy: Matrix, mean: FloatArray, variance: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Offset and noise per row of a copy in host memory."""
        return self.cpu.copy_statistics(host_handle(matrix), host_handle(copy), mean, variance)

    def neuron_predictor(self, predictor: NeuronPredictor) -> NeuronPredictor:
        """Bundle the matrices of a predictor for the CPU."""
        return self.cpu.neuron_predictor(predictor)

    def predict(self, x: FloatArray, predictor: NeuronPredictor) -> ActiveIds:
        """Neurons that pass, found by the CPU."""
        return self.cpu.predict(x, predictor)

    def embed(self, table: Matrix, token_ids: IntArray) -> FloatArray:
        """Rows of the embedding, which is always in host memory."""
        return self.cpu.embed(host_handle(table), token_ids)

    def host_linears(self, x: FloatArray, layers: Sequence[Linear]) -> list[FloatArray]:
        """Products on the CPU, of an array in host memory."""
        return self.cpu.linear(x, [host_linear(layer) for layer in layers])
