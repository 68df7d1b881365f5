"""Assembly of recorder, hand-offs and graphs for one device and its exchange."""

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from powerinfer.errors import UnsupportedError
from powerinfer.ops.cpu.exchange import ExchangeBuffers, NativeExchange, WordArray
from powerinfer.ops.gpu.memory import SharedBuffers
from powerinfer.ops.gpu.recorder import CudaRecorder
from powerinfer.ops.hybrid.handoff.choice import (
    HandoffChoice,
    HandoffFigures,
    HandoffKind,
    measure_handoff,
)
from powerinfer.ops.hybrid.handoff.driver import load_driver
from powerinfer.ops.hybrid.handoff.methods import (
    EagerHandoff,
    HostFunctionHandoff,
    MemoryOperationHandoff,
)
from powerinfer.ops.hybrid.step_graphs import Counting, StepGraphs

if TYPE_CHECKING:
    # It comes with the kernels, which recording does not need.
    from powerinfer.ops.gpu.ops import TorchGPU

__all__ = ["HANDOFFS", "exchange_buffers", "make_step_graphs"]

HANDOFFS = ("auto", "memory_operations", "host_functions", "eager")
"""Choices: measure and take the fastest; insist on one (steps run eagerly where it fails)."""


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
    cold: WordArray,
    flags: WordArray | None,
    *,
    handoff: str = "auto",
    counting: Counting | None = None,
    max_tokens: int = 8,
) -> StepGraphs:
    """Create the graphs of a device; on torch's cpu device nothing is recorded.

    Args:
        exchange: the CPU's half, with a layer if steps hand any over.
        cold: u32[max_tokens, words], the exchange's bits, in page-locked memory.
        flags: u32[2, num_layers], the exchange's flags, likewise; None: no memory operations.
        handoff: one of HANDOFFS.
        counting: counts of the device.
        max_tokens: steps of more tokens are not recorded.

    Raises:
        UnsupportedError: there is no such hand-off.
    """
    if handoff not in HANDOFFS:
        raise UnsupportedError(f"no hand-off {handoff!r}; there are {', '.join(HANDOFFS)}")
    if gpu.device.type != "cuda":
        eager = EagerHandoff(exchange, is_cuda=False)
        choice = HandoffChoice([], None, lambda _: HandoffFigures(0.0, 0.0))
        return StepGraphs(None, eager, choice, counting=counting, max_tokens=max_tokens)
    recorder = CudaRecorder(gpu)
    eager = EagerHandoff(exchange, is_cuda=True)
    kinds = [
        kind
        for kind in _kinds(gpu.device, exchange, flags)
        if handoff in ("auto", kind.substitute_for or kind.name)
    ]
    choice = HandoffChoice(
        kinds,
        None if handoff == "eager" else eager,
        # Not before there are layers.
        lambda handoff: measure_handoff(recorder, handoff, cold, layer=exchange.idle_layer or 0),
    )
    return StepGraphs(recorder, eager, choice, counting=counting, max_tokens=max_tokens)


def _kinds(
    device: torch.device, exchange: NativeExchange, flags: WordArray | None
) -> list[HandoffKind]:
    if torch.version.cuda is None:
        return []  # ROCm has other functions with other arguments

    def host_functions() -> HostFunctionHandoff:
        return HostFunctionHandoff(exchange, load_driver())

    kinds = [HandoffKind("host_functions", host_functions)]
    if flags is None:
        return kinds
    words = flags

    def memory_operations(*, as_nodes: bool) -> MemoryOperationHandoff:
        driver = load_driver()
        driver.require_memory_operations(device.index)
        return MemoryOperationHandoff(exchange, driver, words, as_nodes=as_nodes)

    operations = HandoffKind("memory_operations", partial(memory_operations, as_nodes=False))
    nodes = HandoffKind(
        "memory_nodes", partial(memory_operations, as_nodes=True), substitute_for=operations.name
    )
    return [operations, nodes, *kinds]
