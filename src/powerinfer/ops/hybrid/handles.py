"""Weights that were uploaded: what lies on the device, and the original it was made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeGuard, TypeVar

from torch import Tensor

from powerinfer.ops.cpu.handles import NativeKV, NativeLinear, NativeMatrix, NativeVector
from powerinfer.ops.gpu.attention import DeviceKV
from powerinfer.ops.gpu.linear import DeviceLinear
from powerinfer.ops.gpu.matrix import DeviceMatrix
from powerinfer.ops.protocol import Linear
from powerinfer.values import FloatArray

__all__ = [
    "Fused",
    "FusedPart",
    "HybridArray",
    "HybridKV",
    "HybridLinear",
    "HybridMatrix",
    "HybridVector",
    "OnDevice",
    "UploadedLinear",
    "are_uploaded",
    "device_linear",
    "fused_whole",
    "host_linear",
    "host_matrix",
    "host_vector",
]

DeviceT = TypeVar("DeviceT", covariant=True)
HostT = TypeVar("HostT", covariant=True)


@dataclass(frozen=True, slots=True)
class OnDevice(Generic[DeviceT, HostT]):
    """A matrix, a vector or the cache of a layer that lies on the device.

    Attributes:
        device: handle of the GPU backend.
        host: handle of the CPU backend for the original; None for a cache, which has none.
    """

    device: DeviceT
    host: HostT


@dataclass(frozen=True, slots=True, eq=False)
class Fused:
    """Several products of the same input as one on the device.

    Attributes:
        whole: with handles of the GPU backend.
        sizes: rows of each.
    """

    whole: DeviceLinear
    sizes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FusedPart:
    """A matrix of which the device has the rows among those of others.

    Attributes:
        fused: all of them, with their biases.
        number: of this one.
        host: handle of the CPU backend for the original.
    """

    fused: Fused
    number: int
    host: NativeMatrix


HybridArray: TypeAlias = FloatArray | Tensor
HybridMatrix: TypeAlias = NativeMatrix | OnDevice[DeviceMatrix, NativeMatrix] | FusedPart
HybridVector: TypeAlias = NativeVector | OnDevice[Tensor, NativeVector]
HybridKV: TypeAlias = NativeKV | OnDevice[DeviceKV, None]
HybridLinear: TypeAlias = Linear[HybridMatrix, HybridVector]
UploadedLinear: TypeAlias = Linear[
    OnDevice[DeviceMatrix, NativeMatrix], OnDevice[Tensor, NativeVector]
]


def host_matrix(matrix: HybridMatrix) -> NativeMatrix:
    """The CPU backend's handle of a matrix, wherever the matrix lies."""
    return matrix.host if isinstance(matrix, OnDevice | FusedPart) else matrix


def host_vector(vector: HybridVector) -> NativeVector:
    """The CPU backend's handle of a vector, wherever the vector lies."""
    return vector.host if isinstance(vector, OnDevice) else vector


def host_linear(layer: HybridLinear) -> NativeLinear:
    """The same product with the CPU backend's handles."""
    return Linear(
        host_matrix(layer.matrix), None if layer.bias is None else host_vector(layer.bias)
    )


def are_uploaded(layers: Sequence[HybridLinear]) -> TypeGuard[Sequence[UploadedLinear]]:
    """Whether the products of one input lie on the device, which all of them do or none."""
    return isinstance(layers[0].matrix, OnDevice)


def device_linear(layer: UploadedLinear) -> DeviceLinear:
    """The same product with the GPU backend's handles."""
    return Linear(layer.matrix.device, None if layer.bias is None else layer.bias.device)


def fused_whole(layers: Sequence[HybridLinear]) -> Fused | None:
    """What the products are all the parts of, in order; None where they are no such thing."""
    first = layers[0].matrix
    if not isinstance(first, FusedPart) or len(layers) != len(first.fused.sizes):
        return None
    for number, layer in enumerate(layers):
        part = layer.matrix
        if not isinstance(part, FusedPart) or part.number != number:
            return None
        if part.fused is not first.fused:
            return None
    return first.fused
