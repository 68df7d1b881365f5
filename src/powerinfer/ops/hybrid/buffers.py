"""Page-locked memory in which a GPU and the CPU meet in every layer, and what moves through it."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from powerinfer.ops.cpu.exchange import ExchangeBuffers
from powerinfer.ops.gpu.memory import DeviceMemory

__all__ = ["SharedBuffers"]


@dataclass(frozen=True, slots=True)
class SharedBuffers:
    """Tensors in host memory that kernels read and write directly.

    Attributes:
        x: f32[max_tokens, hidden_size], input of a block.
        cold: i32[max_tokens, words], a bit per neuron, see `ops.cpu.exchange.ExchangeBuffers`.
        predictor_input: f32[max_tokens, hidden_size], what a predictor on the CPU looks at.
        y: f32[max_tokens, hidden_size], the CPU's result.
        status: i32[1].
        flags: i32[2, num_layers].
    """

    x: Tensor
    cold: Tensor
    predictor_input: Tensor
    y: Tensor
    status: Tensor
    flags: Tensor

    @classmethod
    def allocate(
        cls,
        memory: DeviceMemory,
        *,
        max_tokens: int,
        hidden_size: int,
        num_neurons: int,
        num_layers: int,
    ) -> "SharedBuffers":
        """Make all of them, filled with zeros.

        Raises:
            OutOfDeviceMemoryError: the system has no more page-locked memory.
        """
        words = -(-num_neurons // 32)
        return cls(
            x=memory.pinned((max_tokens, hidden_size), torch.float32).zero_(),
            cold=memory.pinned((max_tokens, words), torch.int32).zero_(),
            predictor_input=memory.pinned((max_tokens, hidden_size), torch.float32).zero_(),
            y=memory.pinned((max_tokens, hidden_size), torch.float32).zero_(),
            status=memory.pinned((1,), torch.int32).zero_(),
            flags=memory.pinned((2, num_layers), torch.int32).zero_(),
        )

    def as_arrays(self) -> ExchangeBuffers:
        """The same memory as the CPU's half sees it."""
        return ExchangeBuffers(
            x=self.x.numpy(),
            cold=self.cold.numpy().view(np.uint32),
            y=self.y.numpy(),
            status=self.status.numpy(),
            flags=self.flags.numpy().view(np.uint32),
            predictor_input=self.predictor_input.numpy(),
        )
