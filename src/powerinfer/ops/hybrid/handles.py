"""Weights that were uploaded: what lies on the device, and the original it was made of."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from powerinfer.ops.protocol import Linear

__all__ = [
    "Fused",
    "FusedPart",
    "OnDevice",
    "device_linear",
    "fused_whole",
    "host_handle",
    "host_linear",
]


@dataclass(frozen=True, slots=True)
class OnDevice:
    """A matrix, a vector or the cache of a layer that lies on the device.

    Attributes:
        device: handle of the GPU backend.
        host: handle of the CPU backend for the original; None for a cache, which has none.
    """

    device: Any
    host: Any


@dataclass(frozen=True, slots=True, eq=False)
class Fused:
    """Several products of the same input as one on the device.

    Attributes:
        whole: with handles of the GPU backend.
        sizes: rows of each.
    """

    whole: Linear
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
    host: Any


def host_handle(handle: Any) -> Any:
    """The CPU backend's handle of a weight, wherever the weight lies."""
    return handle.host if isinstance(handle, OnDevice | FusedPart) else handle


def host_linear(layer: Linear) -> Linear:
    """The same product with the CPU backend's handles."""
    return Linear(host_handle(layer.matrix), host_handle(layer.bias))


def device_linear(layer: Linear) -> Linear:
    """The same product with the GPU backend's handles; it must have been uploaded."""
    return Linear(layer.matrix.device, None if layer.bias is None else layer.bias.device)


def fused_whole(layers: Sequence[Linear]) -> Fused | None:
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
