"""Weights of the hybrid backend: all belong to the CPU at first, some are uploaded later.

A handle of uploaded weights keeps that of the original. A `SlotTable` tells which neurons of a
layer are uploaded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Generic, TypeAlias, TypeVar, cast

import numpy as np
from torch import Tensor

from powerinfer.errors import PlacementError
from powerinfer.ops.cpu.handles import NativeFFN, NativeKV, NativeMatrix, NativeVector
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.gpu.cache import DeviceKV
from powerinfer.ops.gpu.linear import DeviceLinear
from powerinfer.ops.gpu.matrix import DeviceMatrix
from powerinfer.ops.protocol import FFN, Linear
from powerinfer.values import FloatArray, IntArray

__all__ = [
    "CPULoading",
    "Fused",
    "FusedPart",
    "HybridArray",
    "HybridFFN",
    "HybridKV",
    "HybridLinear",
    "HybridMatrix",
    "HybridVector",
    "Moves",
    "OnDevice",
    "SlotTable",
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
    """Return the GPU backend's handle of a vector, which must have been uploaded."""
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


def _of_cpu(operation: Callable[..., _ResultT]) -> Callable[..., _ResultT]:
    """Make a method that does an operation of the CPU backend with the originals of weights."""

    @wraps(operation)
    def method(ops: "CPULoading", *operands: Any, **options: Any) -> _ResultT:
        done: _ResultT = getattr(ops.cpu, operation.__name__)(*map(_original, operands), **options)
        return done

    return method


def _original(operand: object) -> object:
    return operand.host if isinstance(operand, OnDevice | FusedPart) else operand


class CPULoading:
    """Operations of `powerinfer.ops.protocol.Ops` on weights in host memory, uploaded or not."""

    cpu: NativeOps

    matrix = _of_cpu(NativeOps.matrix)
    vector = _of_cpu(NativeOps.vector)
    expert_matrix = _of_cpu(NativeOps.expert_matrix)
    expert_vector = _of_cpu(NativeOps.expert_vector)
    constant = _of_cpu(NativeOps.constant)
    vector_values = _of_cpu(NativeOps.vector_values)
    matrix_bytes = _of_cpu(NativeOps.matrix_bytes)
    matrix_shape = _of_cpu(NativeOps.matrix_shape)
    matrix_format = _of_cpu(NativeOps.matrix_format)
    recode = _of_cpu(NativeOps.recode)
    copy_statistics = _of_cpu(NativeOps.copy_statistics)
    # `offload.placing` makes blocks on both devices of them.
    ffn_weights = _of_cpu(NativeOps.ffn_weights)
    neuron_predictor = _of_cpu(NativeOps.neuron_predictor)
    predict = _of_cpu(NativeOps.predict)


def cpu_ffn(ffn: HybridFFN) -> NativeFFN:
    """Convert a block to the CPU backend's type: it holds matrices and vectors of the CPU only.

    Uploaded weights of a block are in `SplitFFN`, and predictors are made of the CPU's copies.
    """
    return cast("NativeFFN", ffn)


@dataclass(frozen=True, slots=True)
class Moves:
    """Neurons of one layer that are replaced, and by which in which free slots: i32[n] each."""

    evicted: IntArray
    loaded: IntArray
    slots: IntArray


class SlotTable:
    """Slots of one layer, some of them free: the host's copy of the tables.

    Attributes:
        neuron_of_slot: i32[slots], -1 for free ones.
        slot_of_neuron: i32[neurons], -1 for neurons that are not on the device.
    """

    def __init__(self, hot: IntArray, num_neurons: int, num_slots: int) -> None:
        """Put neurons, ids i32[k], into the first slots, in their order."""
        self.neuron_of_slot = np.full(num_slots, -1, np.int32)
        self.neuron_of_slot[: len(hot)] = hot
        self.slot_of_neuron = np.full(num_neurons, -1, np.int32)
        self.slot_of_neuron[hot] = np.arange(len(hot), dtype=np.int32)

    @property
    def cold(self) -> IntArray:
        """Ascending ids of the neurons that are not on the device."""
        ids: IntArray = np.flatnonzero(self.slot_of_neuron < 0).astype(np.int32)
        return ids

    @property
    def hot(self) -> IntArray:
        """Ascending ids of the neurons on the device."""
        ids: IntArray = np.flatnonzero(self.slot_of_neuron >= 0).astype(np.int32)
        return ids

    @property
    def free(self) -> IntArray:
        """Ascending numbers of the slots without a neuron."""
        slots: IntArray = np.flatnonzero(self.neuron_of_slot < 0).astype(np.int32)
        return slots

    @property
    def is_full(self) -> bool:
        """True if every neuron of the layer is on the device."""
        return bool((self.slot_of_neuron >= 0).all())

    def replace(self, moves: Moves) -> None:
        """Replace neurons by others whose weights have arrived in free slots."""
        self.neuron_of_slot[self.slot_of_neuron[moves.evicted]] = -1
        self.slot_of_neuron[moves.evicted] = -1
        self.neuron_of_slot[moves.slots] = moves.loaded
        self.slot_of_neuron[moves.loaded] = moves.slots
