"""Assembly of recorder, hand-offs and graphs for one device and its exchange."""

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from powerinfer.errors import DeviceError, UnsupportedError
from powerinfer.ops.cpu.exchange import ExchangeBuffers, NativeExchange
from powerinfer.ops.gpu.memory import SharedBuffers
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

__all__ = ["HANDOFFS", "exchange_buffers", "make_step_graphs", "memory_handoff"]

HANDOFFS = ("auto", "eager")
"""Choices: record steps, handing over by memory operations, if the device can; record nothing."""


def exchange_buffers(shared: SharedBuffers) -> ExchangeBuffers:
    """Convert shared memory to the buffers of the CPU's half."""
    return ExchangeBuffers(
        x=shared.x.numpy(),
        cold=shared.cold.numpy().view(np.uint32),
        y=shared.y.numpy(),
        status=shared.status.numpy(),
        flags=shared.flags.numpy().view(np.uint32),
        predictor_input=shared.predictor_input.numpy(),
        router_input=shared.router_input.numpy() if len(shared.router_input) else None,
        expert_weights=shared.expert_weights.numpy() if len(shared.expert_weights) else None,
    )


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
