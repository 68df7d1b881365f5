"""Putting recorder, ways of handing over and graphs together for one device and its exchange."""

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from powerinfer.errors import UnsupportedError
from powerinfer.ops.cpu.exchange import ExchangeBuffers
from powerinfer.ops.gpu.memory import SharedBuffers
from powerinfer.ops.gpu.recorder import CudaRecorder, NoRecorder, RecordedDevice, Recorder
from powerinfer.ops.hybrid.handoff.choice import HandoffChoice, HandoffKind
from powerinfer.ops.hybrid.handoff.driver import load_driver
from powerinfer.ops.hybrid.handoff.methods import (
    EagerHandoff,
    Exchange,
    HostFunctionHandoff,
    MemoryOperationHandoff,
)
from powerinfer.ops.hybrid.handoff.speed import measure_handoff
from powerinfer.ops.hybrid.step_graphs import StepGraphs

__all__ = ["HANDOFFS", "exchange_buffers", "make_step_graphs"]

HANDOFFS = ("auto", "memory_operations", "host_functions", "eager")
"""Choices: measure and take the fastest; insist on one (steps run eagerly where it fails)."""

_Words = npt.NDArray[np.uint32]


def exchange_buffers(shared: SharedBuffers) -> ExchangeBuffers:
    """The same memory as the CPU's half of an exchange sees it."""
    return ExchangeBuffers(
        x=shared.x.numpy(),
        cold=shared.cold.numpy().view(np.uint32),
        y=shared.y.numpy(),
        status=shared.status.numpy(),
        flags=shared.flags.numpy().view(np.uint32),
    )


def make_step_graphs(
    gpu: RecordedDevice,
    exchange: Exchange,
    cold: _Words,
    flags: _Words | None,
    *,
    handoff: str = "auto",
    save_counts: Callable[[], Callable[[], None]] = lambda: lambda: None,
    max_tokens: int = 8,
) -> StepGraphs:
    """What runs the steps of a device; on torch's cpu device nothing is recorded.

    Args:
        gpu: the device.
        exchange: the CPU's half, with a layer where steps hand any over.
        cold: u32[max_tokens, words], the exchange's bits, in page-locked memory.
        flags: u32[2, num_layers], the exchange's flags, likewise; None: no memory operations.
        handoff: one of HANDOFFS.
        save_counts: see `StepGraphs`.
        max_tokens: see `StepGraphs`.

    Raises:
        UnsupportedError: there is no such hand-off.
    """
    if handoff not in HANDOFFS:
        raise UnsupportedError(f"no hand-off {handoff!r}; there are {', '.join(HANDOFFS)}")
    is_cuda = gpu.device.type == "cuda"
    recorder: Recorder = CudaRecorder(gpu) if is_cuda else NoRecorder(gpu)
    eager = EagerHandoff(exchange, is_cuda=is_cuda)
    kinds = _kinds(gpu.device, exchange, flags) if is_cuda else []
    wanted = [kind for kind in kinds if handoff in ("auto", _option(kind))]
    plain = eager if is_cuda and handoff != "eager" else None
    measure = partial(measure_handoff, recorder, cold=cold)
    return StepGraphs(
        recorder,
        eager,
        HandoffChoice(wanted, plain, measure),
        save_counts=save_counts,
        max_tokens=max_tokens,
    )


def _kinds(device: torch.device, exchange: Exchange, flags: _Words | None) -> list[HandoffKind]:
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

    plain = HandoffKind("memory_operations", partial(memory_operations, as_nodes=False))
    nodes = HandoffKind(
        "memory_nodes", partial(memory_operations, as_nodes=True), spared_by=plain.name
    )
    return [plain, nodes, *kinds]


def _option(kind: HandoffKind) -> str:
    """The choice that a kind belongs to."""
    return kind.spared_by or kind.name
