"""Choice of the hand-off of recorded steps: methods are timed once and dropped when they fail."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from powerinfer.errors import DeviceError, OutOfDeviceMemoryError
from powerinfer.ops.gpu.memory import KernelError, is_out_of_memory
from powerinfer.ops.gpu.recorder import CudaRecorder, CudaRecording
from powerinfer.ops.hybrid.handoff.methods import Handoff, MemoryOperationHandoff

__all__ = [
    "FAILURES",
    "HandoffChoice",
    "HandoffFigures",
    "HandoffKind",
    "cause_of",
    "is_exhaustion",
    "measure_handoff",
]

_log = logging.getLogger(__name__)

# torch reports refusals of the driver as RuntimeError; errors of Triton are KernelErrors here.
FAILURES = (DeviceError, RuntimeError)

# Hand-offs in one record, and replays: enough for a 99th percentile.
_NUM_HANDOFFS = 32
_NUM_REPLAYS = 24


@dataclass(frozen=True, slots=True)
class HandoffFigures:
    """Median and 99th percentile of a hand-off to the CPU and back, without work for the CPU."""

    median_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class HandoffKind:
    """A method that can be recorded.

    Attributes:
        name: see `Handoff.name`.
        make: builds it; raises DeviceError if this machine lacks it.
        substitute_for: name of the kind that this one replaces if that one does not work, or None.
    """

    name: str
    make: Callable[[], Handoff]
    substitute_for: str | None = None


class HandoffChoice:
    """Methods that can be recorded, the fastest first; each is dropped at its first failure.

    Attributes:
        figures: costs of the measured methods, by name.
    """

    def __init__(
        self,
        kinds: Sequence[HandoffKind],
        eager: Handoff | None,
        measure: Callable[[Handoff], HandoffFigures],
    ) -> None:
        """Build and measure nothing before it is needed.

        Args:
            kinds: methods to try.
            eager: method of recorded steps that hand no layer over; None: record nothing.
            measure: measures a method; raises one of FAILURES if it does not work.
        """
        self.figures: dict[str, HandoffFigures] = {}
        self._kinds = kinds
        self._eager = eager
        self._measure = measure
        self._handoffs: list[Handoff] | None = None

    def best(self, *, hands_over: bool) -> Handoff | None:
        """Return the hand-off to record with; None if the step must run eagerly.

        Methods are measured only if the step hands layers over.

        Raises:
            OutOfDeviceMemoryError: there is no room to measure them.
        """
        if self._eager is None or not hands_over:
            return self._eager
        if self._handoffs is None:
            self._handoffs = self._measured()
        return self._handoffs[0] if self._handoffs else None

    def abandon(self, handoff: Handoff, error: BaseException) -> None:
        """Never record with a hand-off again, and log the reason.

        Raises:
            KeyboardInterrupt: it caused the error; the hand-off stays.
        """
        cause = cause_of(error)
        if handoff is self._eager:
            self._eager = None
            _log.warning("steps run without being recorded, which is slower: %s", str(cause))
            return
        handoffs = self._handoffs or []
        if handoff in handoffs:
            handoffs.remove(handoff)
            _warn(handoff.name, cause, handoffs[0].name if handoffs else None)

    @property
    def is_exhausted(self) -> bool:
        """True if no step can be recorded any more."""
        return self._eager is None or self._handoffs == []

    def _measured(self) -> list[Handoff]:
        handoffs: list[Handoff] = []
        for kind in self._kinds:
            if kind.substitute_for in self.figures:
                continue
            try:
                handoff = kind.make()
                self.figures[kind.name] = self._measure(handoff)
            except FAILURES as error:
                if is_exhaustion(error):
                    raise OutOfDeviceMemoryError(
                        "the device has no room to time hand-offs",
                        remedy="use a smaller {vram_budget}",
                    ) from error
                _warn(kind.name, cause_of(error), "another method")
            else:
                handoffs.append(handoff)
        handoffs.sort(key=lambda handoff: self.figures[handoff.name].median_s)
        for name, found in self.figures.items():
            _log.info(
                "hand-off by %s: median %.1f us, p99 %.1f us",
                name,
                found.median_s * 1e6,
                found.p99_s * 1e6,
            )
        if not handoffs:
            _log.warning("no hand-off can be recorded: steps run eagerly, slower")
        return handoffs


def cause_of(error: BaseException) -> BaseException:
    """Return the first cause of an error: torch ends a failed recording with another error.

    Raises:
        KeyboardInterrupt: it is the first cause.
    """
    first, passed = error, {id(error)}
    # If an error is raised twice, the chain may be a cycle.
    # The cause of a KernelError takes many lines.
    while (
        not isinstance(first, KernelError)
        and (before := first.__cause__ or first.__context__)
        and id(before) not in passed
    ):
        first = before
        passed.add(id(first))
    if isinstance(first, KeyboardInterrupt):
        raise first
    return first


def is_exhaustion(error: BaseException) -> bool:
    """Test whether the cause of an error is a lack of memory of the device or page-locked memory.

    Raises:
        KeyboardInterrupt: it is the first cause.
    """
    return is_out_of_memory(cause_of(error))


def _warn(name: str, cause: BaseException, successor: str | None) -> None:
    rest = f"trying {successor}" if successor else "steps run eagerly from now on, slower"
    _log.warning("handing layers to the CPU by %s failed: %s; %s", name, str(cause), rest)


def measure_handoff(
    recorder: CudaRecorder, handoff: Handoff, cold: npt.NDArray[np.uint32], *, layer: int = 0
) -> HandoffFigures:
    """Time the gap between two kernels with a hand-off in between.

    Args:
        recorder: recorder of a CUDA device; its stream must be idle.
        handoff: a method that can be recorded.
        cold: u32[tokens, words], the exchange's bits; those of the first token are cleared, so that
            the CPU has no work.
        layer: layer of the exchange whose neurons the cold bits select.

    Raises:
        DeviceError: the method does not work on this device.
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
    # The first replay sends the graph to the device.
    seconds = np.concatenate(samples[1:])
    return HandoffFigures(float(np.median(seconds)), float(np.quantile(seconds, 0.99)))


def _mark() -> torch.cuda.Event:
    """Create an event that can be timed inside a record."""
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
    recorder: CudaRecorder,
    recording: CudaRecording,
    handoff: Handoff,
    layer: int,
    marks: list[torch.cuda.Event],
) -> npt.NDArray[np.float64]:
    """Return the seconds of each hand-off of one replay."""
    handoff.begin_step(1, [layer] * _NUM_HANDOFFS)
    try:
        recording.replay()
    finally:
        recorder.synchronize()
        handoff.end_step()
    return np.array([one.elapsed_time(next_one) for one, next_one in pairwise(marks)]) * 1e-3
