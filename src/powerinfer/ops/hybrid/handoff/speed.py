"""How long it takes a GPU to hand a layer to the CPU and to have its answer."""

from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from powerinfer.errors import DeviceError
from powerinfer.ops.gpu.recorder import Recorder, Recording
from powerinfer.ops.hybrid.handoff.choice import HandoffFigures
from powerinfer.ops.hybrid.handoff.methods import Handoff, MemoryOperationHandoff

__all__ = ["measure_handoff"]

# Hand-offs in one record, and replays: enough that one in a hundred is seen.
_NUM_HANDOFFS = 32
_NUM_REPLAYS = 24


def measure_handoff(
    recorder: Recorder, handoff: Handoff, cold: npt.NDArray[np.uint32], *, layer: int = 0
) -> HandoffFigures:
    """Time from the end of a kernel to that of the next, between which the CPU is asked.

    Args:
        recorder: of a CUDA device; its stream must be idle.
        handoff: a way that can be recorded.
        cold: u32[tokens, words], the exchange's bits; those of the first token are cleared, so that
            the CPU has nothing to compute.
        layer: of the exchange.

    Raises:
        DeviceError: the way does not work on this device.
        RuntimeError: it cannot be recorded.
    """
    cold[0].fill(0)
    with recorder.working():
        if isinstance(handoff, MemoryOperationHandoff):
            handoff.check(recorder)
        marks = [_mark() for _ in range(_NUM_HANDOFFS + 1)]
        word = torch.zeros(1, device="cuda")
        word.add_(1)  # loads the kernel
        recording = recorder.record(lambda: _queue_handoffs(handoff, layer, marks, word))
        try:
            samples = [
                _replay(recorder, recording, handoff, layer, marks) for _ in range(_NUM_REPLAYS)
            ]
        finally:
            recording.drop()
    # The first replay brings the graph to the device.
    seconds = np.concatenate(samples[1:])
    return HandoffFigures(float(np.median(seconds)), float(np.quantile(seconds, 0.99)))


def _mark() -> torch.cuda.Event:
    """An event that can be timed inside a record."""
    try:
        return torch.cuda.Event(enable_timing=True, external=True)
    except TypeError:
        raise DeviceError(
            f"torch {torch.__version__} times nothing inside records; install torch 2.9 or newer"
        ) from None


def _queue_handoffs(
    handoff: Handoff, layer: int, marks: list[torch.cuda.Event], word: torch.Tensor
) -> None:
    word.add_(1)
    marks[0].record()
    for mark in marks[1:]:
        handoff.signal(layer, 1)
        handoff.wait(layer, 1)
        word.add_(1)
        mark.record()


def _replay(
    recorder: Recorder,
    recording: Recording,
    handoff: Handoff,
    layer: int,
    marks: list[torch.cuda.Event],
) -> npt.NDArray[np.float64]:
    """Seconds of each hand-off of one replay."""
    handoff.begin_step(1, [layer] * _NUM_HANDOFFS)
    try:
        recording.replay()
    finally:
        recorder.synchronize()
        handoff.end_step()
    return np.array([one.elapsed_time(next_one) for one, next_one in pairwise(marks)]) * 1e-3
