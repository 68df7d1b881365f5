"""Which method of handing layers to the CPU recorded steps use: timed once, left when it fails."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import torch

from powerinfer.errors import DeviceError, OutOfDeviceMemoryError
from powerinfer.ops.gpu.memory import is_out_of_memory
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

# torch reports what the driver refuses as RuntimeError.
FAILURES = (DeviceError, RuntimeError)

# Hand-offs in one record, and replays: enough that one in a hundred is seen.
_NUM_HANDOFFS = 32
_NUM_REPLAYS = 24


@dataclass(frozen=True, slots=True)
class HandoffFigures:
    """What it costs to hand a layer to the CPU and back when the CPU has nothing to do.

    Attributes:
        median_s: seconds.
        p99_s: seconds that one in a hundred exceeds.
    """

    median_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class HandoffKind:
    """A method that can be recorded.

    Attributes:
        name: of it, see `Handoff.name`.
        make: builds it; DeviceError where this machine lacks it.
        substitute_for: name of a kind that makes this one superfluous where it works, or None.
    """

    name: str
    make: Callable[[], Handoff]
    substitute_for: str | None = None


class HandoffChoice:
    """The methods that can be recorded, the fastest first; each is left at its first failure.

    Attributes:
        figures: what the methods that were measured cost, by name.
    """

    def __init__(
        self,
        kinds: Sequence[HandoffKind],
        eager: Handoff | None,
        measure: Callable[[Handoff], HandoffFigures],
    ) -> None:
        """Nothing is built or measured before it is needed.

        Args:
            kinds: methods to try.
            eager: what records of steps that hand no layer over name instead; None where nothing
                shall be recorded.
            measure: cost of a method; raises one of FAILURES where it does not work.
        """
        self.figures: dict[str, HandoffFigures] = {}
        self._kinds = kinds
        self._eager = eager
        self._measure = measure
        self._handoffs: list[Handoff] | None = None

    def best(self, *, hands_over: bool) -> Handoff | None:
        """The hand-off to record with; None if the step must run eagerly.

        Args:
            hands_over: whether the step has layers for the CPU. Only then methods are measured.

        Raises:
            OutOfDeviceMemoryError: there is no room to measure them.
        """
        if self._eager is None or not hands_over:
            return self._eager
        if self._handoffs is None:
            self._handoffs = self._measured()
        return self._handoffs[0] if self._handoffs else None

    def give_up(self, handoff: Handoff, error: BaseException) -> None:
        """Never record with a hand-off again, and say why.

        Raises:
            KeyboardInterrupt: the error came of one; the hand-off stays.
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
        """Whether no step can be recorded any more."""
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
    """What an error began with: torch ends a failed recording with an error of its own.

    Raises:
        KeyboardInterrupt: it began with one.
    """
    first, passed = error, {id(error)}
    # Where one error is raised twice, the chain may lead back to it.
    while (before := first.__cause__ or first.__context__) and id(before) not in passed:
        first = before
        passed.add(id(first))
    if isinstance(first, KeyboardInterrupt):
        raise first
    return first


def is_exhaustion(error: BaseException) -> bool:
    """Whether an error began with memory of the device, or page-locked memory, that ran out.

    Raises:
        KeyboardInterrupt: it began with one.
    """
    return is_out_of_memory(cause_of(error))


def _warn(name: str, cause: BaseException, successor: str | None) -> None:
    rest = f"trying {successor}" if successor else "steps run eagerly from now on, slower"
    _log.warning("handing layers to the CPU by %s failed: %s; %s", name, str(cause), rest)


def measure_handoff(
    recorder: CudaRecorder, handoff: Handoff, cold: npt.NDArray[np.uint32], *, layer: int = 0
) -> HandoffFigures:
    """Time from the end of a kernel to that of the next, between which the CPU is asked.

    Args:
        recorder: of a CUDA device; its stream must be idle.
        handoff: a method that can be recorded.
        cold: u32[tokens, words], the exchange's bits; those of the first token are cleared, so that
            the CPU has nothing to compute.
        layer: of the exchange; one that cold bits decide for.

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
    recorder: CudaRecorder,
    recording: CudaRecording,
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
