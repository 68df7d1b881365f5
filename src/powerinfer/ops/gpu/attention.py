"""The paged KV cache on the device and attention over it."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from powerinfer.errors import UnsupportedError
from powerinfer.ops.gpu.batch import DeviceBatch
from powerinfer.ops.gpu.kernels import MAX_TOKENS
from powerinfer.ops.gpu.kernels.arguments import Softmax
from powerinfer.ops.gpu.kernels.attention import attend_few
from powerinfer.ops.gpu.kernels.attention_many import attend_many
from powerinfer.ops.gpu.memory import Arena
from powerinfer.ops.operands import KVType

__all__ = ["DeviceKV", "attention", "decoded_cache", "new_kv_layers"]

_SCALE_BLOCK = 32

# Tiles of queries pay off if several tokens of a sequence share what a tile loads.
_MIN_TOKENS_PER_SEQUENCE = 4


@dataclass(frozen=True, slots=True)
class DeviceKV:
    """Keys and values of one layer; Q8_0 keeps codes and scales apart.

    Attributes:
        keys: f16 or i8[num_blocks, block_size, num_kv_heads, head_dim].
        values: the same shape and type.
        key_scales: f16[num_blocks, block_size, num_kv_heads, head_dim / 32]; empty for f16.
    """

    kv_type: KVType
    keys: Tensor
    values: Tensor
    key_scales: Tensor
    value_scales: Tensor

    @property
    def block_size(self) -> int:
        """Positions in one block."""
        return int(self.keys.shape[1])

    @property
    def num_kv_heads(self) -> int:
        """Heads of the keys."""
        return int(self.keys.shape[2])

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return int(self.keys.shape[3])

    @property
    def is_q8(self) -> bool:
        """True if the elements are codes with scales."""
        return self.kv_type is KVType.Q8_0

    @property
    def arrays(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Arguments of kernels: keys, values and their scales."""
        return self.keys, self.values, self.key_scales, self.value_scales

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return sum(int(array.nbytes) for array in self.arrays)


def new_kv_layers(
    num_layers: int, shape: tuple[int, int, int, int], kv_type: KVType, device: torch.device
) -> list[DeviceKV]:
    """Allocate caches of layers in one arena, uninitialised.

    `shape` is num_blocks, block_size, num_kv_heads, head_dim.

    Raises:
        UnsupportedError: q8_0 with heads that are not whole blocks.
        OutOfDeviceMemoryError: the device has no room.
    """
    *_, head_dim = shape
    if kv_type is KVType.Q8_0 and head_dim % _SCALE_BLOCK:
        raise UnsupportedError(
            f"a KV cache of type {kv_type} needs heads whose width is a multiple of "
            f"{_SCALE_BLOCK}; these are {head_dim} wide: use f16"
        )
    counted = Arena.counting()
    _kv_layer(shape, kv_type, counted)
    num_bytes = num_layers * counted.used_bytes
    arena = Arena.allocate(device, num_bytes, "the KV cache", is_zero=False)
    return [_kv_layer(shape, kv_type, arena) for _ in range(num_layers)]


def _kv_layer(shape: tuple[int, int, int, int], kv_type: KVType, arena: Arena) -> DeviceKV:
    *outer, head_dim = shape
    is_q8 = kv_type is KVType.Q8_0
    element = torch.int8 if is_q8 else torch.float16
    scales = (*outer, head_dim // _SCALE_BLOCK) if is_q8 else (0,)
    sizes = ((shape, element), (shape, element), (scales, torch.float16), (scales, torch.float16))
    return DeviceKV(kv_type, *(arena.array(size, dtype) for size, dtype in sizes))


def attention(
    q: Tensor, cache: DeviceKV, batch: DeviceBatch, softmax: Softmax, *, is_rounded: bool = False
) -> Tensor:
    """Compute `powerinfer.ops.protocol.Ops.attention`; `is_rounded` as for `attend_few`.

    For steps that a graph may record, the launches do not depend on the numbers in the batch.
    """
    num_tokens, num_sequences = batch.num_tokens, int(batch.block_tables.shape[0])
    is_long = num_tokens >= _MIN_TOKENS_PER_SEQUENCE * num_sequences
    if num_tokens > MAX_TOKENS and is_long:
        return attend_many(q, cache, batch, softmax)
    return attend_few(q, cache, batch, softmax, is_rounded=is_rounded and num_tokens <= MAX_TOKENS)


def decoded_cache(cache: DeviceKV) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Decode keys and values to f32[num_blocks, block_size, num_kv_heads, head_dim], for tests."""
    return _decoded(cache.keys, cache.key_scales), _decoded(cache.values, cache.value_scales)


def _decoded(stored: Tensor, scales: Tensor) -> npt.NDArray[np.float32]:
    numbers = stored.float()
    if scales.numel():
        numbers = numbers * scales.float().repeat_interleave(_SCALE_BLOCK, dim=-1)
    array: npt.NDArray[np.float32] = numbers.cpu().numpy()
    return array
