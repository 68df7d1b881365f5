"""Weights of the hybrid backend: all belong to the CPU at first, some are uploaded later.

A handle of uploaded weights keeps that of the original.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar, cast

from torch import Tensor

from powerinfer.errors import PlacementError
from powerinfer.gguf import Tensor as GGUFTensor
from powerinfer.ops.cpu.handles import (
    NativeFFN,
    NativeKV,
    NativeMatrix,
    NativePredictor,
    NativeVector,
)
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.gpu.attention import DeviceKV
from powerinfer.ops.gpu.linear import DeviceLinear
from powerinfer.ops.gpu.matrix import DeviceMatrix
from powerinfer.ops.hybrid.decode import HandedFFN, SplitFFN
from powerinfer.ops.protocol import FFN, ActiveIds, Linear, MatrixUse, NeuronPredictor
from powerinfer.values import BoolArray, FloatArray, IntArray

__all__ = [
    "CPULoading",
    "Fused",
    "FusedPart",
    "HybridArray",
    "HybridFFN",
    "HybridKV",
    "HybridLinear",
    "HybridMatrix",
    "HybridPredictor",
    "HybridVector",
    "OnDevice",
    "UploadedLinear",
    "cpu_ffn",
    "device_linears",
    "device_vector",
    "fused_whole",
    "host_matrix",
    "host_vector",
    "optional",
]

DeviceT = TypeVar("DeviceT", covariant=True)
HostT = TypeVar("HostT", covariant=True)
_GivenT = TypeVar("_GivenT")
_ResultT = TypeVar("_ResultT")


@dataclass(frozen=True, slots=True)
class OnDevice(Generic[DeviceT, HostT]):
    """A matrix or vector on the device, and the CPU backend's handle of the original."""

    device: DeviceT
    host: HostT


@dataclass(frozen=True, slots=True, eq=False)
class Fused:
    """Several products of the same input, joined on the device; `sizes` are the rows of each."""

    whole: DeviceLinear
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FusedPart:
    """Matrix `number` of joined ones, and the CPU backend's handle of the original."""

    fused: Fused
    number: int
    host: NativeMatrix


HybridArray: TypeAlias = FloatArray | Tensor
HybridMatrix: TypeAlias = NativeMatrix | OnDevice[DeviceMatrix, NativeMatrix] | FusedPart
HybridVector: TypeAlias = NativeVector | OnDevice[Tensor, NativeVector]
HybridKV: TypeAlias = NativeKV | DeviceKV
HybridLinear: TypeAlias = Linear[HybridMatrix, HybridVector]
UploadedLinear: TypeAlias = Linear[
    OnDevice[DeviceMatrix, NativeMatrix], OnDevice[Tensor, NativeVector]
]
HybridPredictor: TypeAlias = NeuronPredictor[HybridMatrix, HybridVector]
HybridFFN: TypeAlias = FFN[HybridMatrix, HybridVector]


def optional(convert: Callable[[_GivenT], _ResultT]) -> Callable[[_GivenT | None], _ResultT | None]:
    """Extend a conversion to None, which it leaves alone."""
    return lambda value: None if value is None else convert(value)


def host_matrix(matrix: HybridMatrix) -> NativeMatrix:
    """Return the CPU backend's handle of a matrix."""
    return matrix.host if isinstance(matrix, OnDevice | FusedPart) else matrix


def host_vector(vector: HybridVector) -> NativeVector:
    """Return the CPU backend's handle of a vector."""
    return vector.host if isinstance(vector, OnDevice) else vector


def device_vector(vector: HybridVector) -> Tensor:
    """Return the GPU backend's handle of a vector.

    Raises:
        PlacementError: it was not uploaded.
    """
    if isinstance(vector, OnDevice):
        return vector.device
    raise PlacementError("a vector that an operation on the GPU needs was not uploaded")


def device_linears(layers: Sequence[HybridLinear]) -> list[DeviceLinear]:
    """Convert the products of one input that are on the device: all or none of them are."""
    return [
        Linear(layer.matrix.device, optional(device_vector)(layer.bias))
        for layer in layers
        if isinstance(layer.matrix, OnDevice)
    ]


def fused_whole(layers: Sequence[HybridLinear]) -> Fused | None:
    """Return the joined product if these are all its parts, in order; else None."""
    parts = [layer.matrix for layer in layers]
    if not isinstance(parts[0], FusedPart):
        return None
    fused = parts[0].fused
    numbers = [part.number for part in parts if isinstance(part, FusedPart) and part.fused is fused]
    is_whole = numbers == list(range(len(fused.sizes))) and len(parts) == len(numbers)
    return fused if is_whole else None


class CPULoading:
    """Operations of `powerinfer.ops.protocol.Ops` on weights, done by the CPU backend.

    For a handle of uploaded weights they use the original.
    """

    cpu: NativeOps

    def matrix(self, tensor: GGUFTensor, use: MatrixUse) -> HybridMatrix:
        """Prepare a weight matrix in host memory."""
        return self.cpu.matrix(tensor, use)

    def vector(self, tensor: GGUFTensor) -> HybridVector:
        """Prepare a norm weight or bias in host memory."""
        return self.cpu.vector(tensor)

    def expert_matrix(self, tensors: Sequence[GGUFTensor], use: MatrixUse) -> HybridMatrix:
        """Prepare the matrices of all experts in host memory."""
        return self.cpu.expert_matrix(tensors, use)

    def expert_vector(self, tensor: GGUFTensor) -> HybridVector:
        """Prepare the biases of all experts in host memory."""
        return self.cpu.expert_vector(tensor)

    def constant(self, values: FloatArray) -> HybridVector:
        """Wrap f32[n] in host memory."""
        return self.cpu.constant(values)

    def vector_values(self, vector: HybridVector) -> FloatArray:
        """Return the f32[n] of a vector."""
        return self.cpu.vector_values(host_vector(vector))

    def matrix_bytes(self, matrix: HybridMatrix) -> int:
        """Return the bytes of the original."""
        return self.cpu.matrix_bytes(host_matrix(matrix))

    def matrix_shape(self, matrix: HybridMatrix) -> tuple[int, int]:
        """Return rows and columns of the original."""
        return self.cpu.matrix_shape(host_matrix(matrix))

    def matrix_format(self, matrix: HybridMatrix) -> str:
        """Return the format of the original."""
        return self.cpu.matrix_format(host_matrix(matrix))

    def ffn_weights(self, ffn: HybridFFN) -> HybridFFN:
        """Bundle weights for the CPU; `offload.placing` makes blocks on both devices of them."""
        return self.cpu.ffn_weights(cpu_ffn(ffn))

    def recode(self, matrix: HybridMatrix, format_name: str) -> HybridMatrix:
        """Encode a copy in host memory."""
        return self.cpu.recode(host_matrix(matrix), format_name)

    def copy_statistics(
        self, matrix: HybridMatrix, copy: HybridMatrix, mean: FloatArray, variance: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Compute offset and noise per row of a copy in host memory."""
        return self.cpu.copy_statistics(host_matrix(matrix), host_matrix(copy), mean, variance)

    def neuron_predictor(self, predictor: HybridPredictor) -> HybridPredictor:
        """Bundle the matrices of a predictor for the CPU."""
        return self.cpu.neuron_predictor(cast("NativePredictor", predictor))

    def predict(
        self, x: FloatArray, predictor: HybridPredictor, is_prompt: BoolArray | None = None
    ) -> ActiveIds:
        """List the neurons that pass, on the CPU."""
        return self.cpu.predict(x, cast("NativePredictor", predictor), is_prompt)

    def route(
        self, x: FloatArray, ffn: HybridFFN, is_prompt: BoolArray | None = None
    ) -> tuple[IntArray, FloatArray]:
        """Choose experts on the CPU."""
        return self.cpu.route(x, original_ffn(ffn), is_prompt)


def original_ffn(ffn: HybridFFN) -> NativeFFN:
    """Return the block as the CPU backend prepared it, even if it was placed since."""
    placed = ffn.native
    return placed.cpu if isinstance(placed, SplitFFN | HandedFFN) else cpu_ffn(ffn)


def cpu_ffn(ffn: HybridFFN) -> NativeFFN:
    """Convert a block to the CPU backend's type: it holds matrices and vectors of the CPU only.

    Uploaded weights of a block are in `SplitFFN`, and predictors are made of the CPU's copies.
    """
    return cast("NativeFFN", ffn)
