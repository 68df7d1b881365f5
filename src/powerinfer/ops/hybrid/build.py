"""Assembly of the memory that two devices share, hand-offs and graphs for one device."""

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from powerinfer.errors import DeviceError, UnsupportedError
from powerinfer.ops.cpu.exchange import ExchangeBuffers, NativeExchange
from powerinfer.ops.gpu.memory import DeviceMemory
from powerinfer.ops.gpu.recorder import CudaRecorder
from powerinfer.ops.hybrid.handoff import (
    EagerHandoff,
    HandoffChoice,
    MemoryOperationHandoff,
    load_driver,
)
from powerinfer.ops.hybrid.step_graphs import Counting, StepGraphs

if TYPE_CHECKING:
    # It comes with the kernels, which recording does not need.
    from powerinfer.ops.gpu.ops import TorchGPU

__all__ = ["HANDOFFS", "SharedBuffers", "make_step_graphs", "memory_handoff"]

HANDOFFS = ("auto", "eager")
"""Choices: record steps, handing over by memory operations, if the device can; record nothing."""


@dataclass(frozen=True, slots=True)
class SharedBuffers:
    """Page-locked memory that a GPU and the CPU share in every layer; kernels access it.

    The tensors are those arrays of `exchange` that have their names, with i32 for words; without
    experts the last two have no rows.
    """

    exchange: ExchangeBuffers
    x: Tensor
    cold: Tensor
    y: Tensor
    predictor_input: Tensor
    router_input: Tensor
    expert_weights: Tensor

    @classmethod
    def allocate(
        cls,
        memory: DeviceMemory,
        *,
        max_tokens: int,
        hidden_size: int,
        num_neurons: int,
        num_layers: int,
        num_experts: int = 0,
    ) -> "SharedBuffers":
        """Allocate all of them, filled with zeros."""

        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return memory.pinned(shape, dtype).zero_()

        x, y, predictor_input = (zeros(max_tokens, hidden_size) for _ in range(3))
        num_routed = max_tokens if num_experts else 0
        router_input, expert_weights = (zeros(num_routed, n) for n in (hidden_size, num_experts))
        cold = zeros(max_tokens, -(-num_neurons // 32), dtype=torch.int32)
        exchange = ExchangeBuffers(
            x=x.numpy(),
            cold=cold.numpy().view(np.uint32),
            y=y.numpy(),
            status=zeros(1, dtype=torch.int32).numpy(),
            flags=zeros(2, num_layers, dtype=torch.int32).numpy().view(np.uint32),
            predictor_input=predictor_input.numpy(),
            router_input=router_input.numpy() if num_experts else None,
            expert_weights=expert_weights.numpy() if num_experts else None,
        )
        return cls(exchange, x, cold, y, predictor_input, router_input, expert_weights)


def make_step_graphs(
    gpu: "TorchGPU",
    exchange: NativeExchange,
    *,
    handoff: str = "auto",
    counting: Counting | None = None,
    max_tokens: int = 8,
) -> StepGraphs:
    """Create the graphs of a device; on torch's cpu device nothing is recorded.

    Args:
        exchange: the CPU's half, with a layer if steps hand any over; its cold bits and flags are
            in page-locked memory.
        handoff: one of HANDOFFS.

    Raises:
        UnsupportedError: there is no such hand-off.
    """
    if handoff not in HANDOFFS:
        raise UnsupportedError(f"no hand-off {handoff!r}; there are {', '.join(HANDOFFS)}")
    is_cuda = gpu.device.type == "cuda"
    eager = EagerHandoff(exchange, is_cuda=is_cuda)
    recorder = CudaRecorder(gpu) if is_cuda else None
    choice = HandoffChoice(
        partial(memory_handoff, recorder, exchange, gpu.device.index),
        eager if is_cuda and handoff != "eager" else None,
    )
    return StepGraphs(recorder, eager, choice, counting=counting, max_tokens=max_tokens)


def memory_handoff(
    recorder: CudaRecorder | None, exchange: NativeExchange, device_index: int
) -> MemoryOperationHandoff:
    """Make the hand-off by memory operations and try it out.

    Args:
        recorder: recorder of a CUDA device, whose stream must be idle; None for another device.

    Raises:
        DeviceError: the device has no memory operations, or they do not work.
        RuntimeError: they cannot be recorded.
    """
    if recorder is None or torch.version.cuda is None:
        # ROCm has other functions with other arguments.
        raise DeviceError("memory operations need a device of CUDA")
    driver = load_driver()
    driver.require_memory_operations(device_index)
    handoff = MemoryOperationHandoff(exchange, driver)
    with recorder.working():
        handoff.check(recorder)
    return handoff
