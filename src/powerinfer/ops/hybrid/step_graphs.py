"""Runs of layers recorded as a CUDA graph each and replayed; what cannot be recorded runs eagerly.

A run is executed eagerly a few times, which compiles its kernels, then recorded, replayed, and
compared with the eager result. If the hand-off cannot be recorded, fails or gives other numbers,
runs stay eager. Repeating a run is harmless: it writes the same keys and values to the same places.

However a run ends, even by Ctrl-C or a failure of the device, it leaves the device and the CPU's
half idle.
"""

import logging
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from powerinfer.errors import DeviceError, OutOfDeviceMemoryError
from powerinfer.ops.cpu.ops import weak_key
from powerinfer.ops.gpu.memory import is_out_of_memory, release_cached
from powerinfer.ops.gpu.recorder import Activations, CudaRecorder, CudaRecording
from powerinfer.ops.hybrid.handoff import (
    FAILURES,
    Handoff,
    HandoffChoice,
    cause_of,
    is_exhaustion,
)
from powerinfer.values import Batch, FloatArray

if TYPE_CHECKING:
    # It comes with the kernels, which recording does not need.
    from powerinfer.ops.gpu.cache import DeviceBatch

__all__ = ["Counting", "QueueRun", "StepGraphs"]

_log = logging.getLogger(__name__)

# Largest difference to the eager result, as a share of its largest number. Equal bits are usual;
# a library may choose another algorithm while it is being recorded.
TOLERANCE = 1e-3

_DRIVER_SAYS = ("CUDA error", "HIP error", "Triton Error [")

QueueRun: TypeAlias = Callable[[Activations, "Batch | DeviceBatch", Handoff], Activations]
"""Queues a run of layers: called with x and its batch, or with static inputs for both, and with the
hand-off to signal by; returns f32[num_tokens, columns]."""

# A `weak_key`, the shape of x, the number of sequences.
_Size: TypeAlias = tuple[Hashable, tuple[int, ...], int]


@dataclass(frozen=True, slots=True)
class Counting:
    """Counts of a device during runs (neurons, scores).

    Attributes:
        save: returns a function that restores the current counts, so that of several runs of the
            same layers in one step only one counts.
        fetch: queues a copy of the counts to the host.
    """

    save: Callable[[], Callable[[], None]] = lambda: lambda: None
    fetch: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class _Run:
    """A run of one step: its input, its queueing function, and the layers handed to the CPU."""

    x: FloatArray
    batch: Batch
    queue: QueueRun
    layers: Sequence[int]


@dataclass(slots=True)
class _Entry:
    """A run of layers for one key and size.

    Attributes:
        inputs: memory that its record reads.
        num_warm_ups: eager steps so far.
        record: what was recorded, and the hand-off in it.
        has_taken_room: other records were dropped for it once.
        is_eager: there is no room for a record.
    """

    inputs: "DeviceBatch | None" = None
    num_warm_ups: int = 0
    record: tuple[CudaRecording, Handoff] | None = None
    has_taken_room: bool = False
    is_eager: bool = False

    def drop(self) -> None:
        """Release the record, which may be made again."""
        record, self.record, self.inputs, self.num_warm_ups = self.record, None, None, 0
        if record is not None:
            record[0].drop()


class _LostDeviceError(DeviceError):
    """The device itself failed: no hand-off is to blame, and nothing can be retried."""


class StepGraphs:
    """Executes runs of layers, recorded if possible.

    Attributes:
        handoff: that of the last run.
        choice: the hand-off that may be recorded.
        is_on_trial: a lack of memory for a record is raised, so that less is placed; see
            `StreamedWeights` too. Otherwise other records are dropped, and if that does not help
            this size is not recorded.
    """

    def __init__(
        self,
        recorder: CudaRecorder | None,
        eager: Handoff,
        choice: HandoffChoice,
        *,
        counting: Counting | None = None,
        max_tokens: int = 8,
        num_warm_ups: int = 2,
        max_sizes: int = 12,
    ) -> None:
        """Prepare; nothing is measured or recorded before the first run that can be.

        Args:
            recorder: None for torch's cpu device, which records nothing.
            eager: hand-off of runs that are not recorded.
            max_tokens: steps of more tokens are not recorded.
            num_warm_ups: eager runs of the same key and size before recording.
            max_sizes: keys and sizes kept; the least recently used one goes.
        """
        self.handoff = eager
        self.choice = choice
        self.is_on_trial = False
        self._recorder = recorder
        self._eager = eager
        self._counting = counting or Counting()
        self._max_tokens = max_tokens
        self._num_warm_ups = num_warm_ups
        self._max_sizes = max_sizes
        # Entries by size and number of the run in its step.
        self._sizes: OrderedDict[_Size, dict[int, _Entry]] = OrderedDict()

    @property
    def num_records(self) -> int:
        """Number of recorded runs."""
        return sum(entry.record is not None for entry in self._entries())

    def working(self) -> AbstractContextManager[None]:
        """Open the context in which all work of the device must be queued; may be nested."""
        return nullcontext() if self._recorder is None else self._recorder.working()

    def run(
        self,
        x: FloatArray,
        batch: Batch,
        queue: QueueRun,
        key: Hashable | None,
        *,
        number: int = 0,
        layers: Sequence[int] = (),
    ) -> FloatArray:
        """Execute one run of layers, within `working`; see `powerinfer.ops.protocol.Ops.step`.

        Args:
            key: see `LayerProgram.key`; None for a step that may not be recorded.
            number: number of the run in its step.
            layers: layers of the exchange that it hands to the CPU, in the order of their signals.

        Raises:
            OutOfDeviceMemoryError: not even an eager run fits; on trial, a record does not.
            DeviceError: the CPU's half failed in an eager run, or the device failed.
        """
        wanted = _Run(x, batch, queue, layers)
        is_small = batch.num_tokens <= self._max_tokens
        if key is None or self._recorder is None or self.choice.is_exhausted or not is_small:
            return self._with_room(partial(self._run_eagerly, wanted))
        entry = self._entry(key, x.shape, len(batch.block_tables), number)
        if not entry.is_eager:
            attempt = partial(self._run_or_record, entry, self._recorder, wanted)
            try:
                return self._with_room(attempt, entry)
            except FAILURES as error:
                if self.is_on_trial or not is_exhaustion(error):
                    raise
                entry.drop()
                entry.is_eager = True
                _log.warning(
                    "steps of %d tokens are not recorded, which is slower: %s",
                    batch.num_tokens,
                    str(cause_of(error)),
                )
        return self._with_room(partial(self._run_eagerly, wanted))

    def forget(self, key: Hashable | None = None) -> None:
        """Drop the records of a key, or all."""
        owner = None if key is None else weak_key(key)
        self._drop([size for size in self._sizes if owner is None or size[0] == owner])

    # Entries.

    def _entries(self) -> Iterator[_Entry]:
        for entries in self._sizes.values():
            yield from entries.values()

    def _entry(
        self, key: Hashable, shape: tuple[int, ...], num_sequences: int, number: int
    ) -> _Entry:
        size = (weak_key(key), shape, num_sequences)
        if size not in self._sizes:
            known = list(self._sizes)
            self._drop([s for s in known if isinstance(s[0], weakref.ref) and s[0]() is None])
            self._drop(list(self._sizes)[: max(0, len(self._sizes) + 1 - self._max_sizes)])
            self._sizes[size] = {}
        self._sizes.move_to_end(size)
        return self._sizes[size].setdefault(number, _Entry())

    def _drop(self, sizes: Sequence[_Size]) -> None:
        for size in sizes:
            for entry in self._sizes.pop(size).values():
                entry.drop()

    def _with_room(
        self, attempt: Callable[[], FloatArray], entry: _Entry | None = None
    ) -> FloatArray:
        """Try `attempt`, and again without the records of other runs if memory runs out.

        Records are dropped once for an entry; None: whenever necessary.
        """
        try:
            return attempt()
        except FAILURES as error:
            may_take = entry is None or not entry.has_taken_room
            if self.is_on_trial or not may_take or not is_exhaustion(error):
                raise
            num_records = self.num_records
            for other in self._entries():
                if other is not entry:
                    other.drop()
            if self.num_records == num_records:
                raise
        if entry is not None:
            entry.has_taken_room = True
        # Not inside `except`, where the frames of the failed attempt still hold memory.
        release_cached()
        return attempt()

    # Runs.

    def _run_or_record(self, entry: _Entry, recorder: CudaRecorder, wanted: _Run) -> FloatArray:
        """Execute what an entry is due: eager steps, the record, its replays."""
        if entry.inputs is None:
            entry.inputs = recorder.inputs(wanted.x, wanted.batch)
        if entry.record is not None:
            recording, handoff = entry.record
            try:
                return self._replay(entry.inputs, recording, handoff, wanted)
            except FAILURES as error:
                if is_exhaustion(error):
                    raise
                self._abandon(handoff, error)
        elif entry.num_warm_ups == self._num_warm_ups:
            return self._record(entry, entry.inputs, recorder, wanted)
        else:
            entry.num_warm_ups += 1
        return self._run_eagerly(wanted, entry.inputs)

    def _run_eagerly(self, wanted: _Run, inputs: "DeviceBatch | None" = None) -> FloatArray:
        """Queue the run and wait for it, with static inputs if they are given."""
        if inputs is not None:
            inputs.fill(wanted.batch, wanted.x)
        with self._under_way(self._eager, wanted):
            output = self._queue(wanted, inputs, self._eager)
            if self._recorder is not None:
                return self._recorder.to_host(output)
            return output if isinstance(output, np.ndarray) else np.array(output.numpy())

    def _record(
        self, entry: _Entry, inputs: "DeviceBatch", recorder: CudaRecorder, wanted: _Run
    ) -> FloatArray:
        """Record the run with the best hand-off, if there is one, and compare a replay."""
        restore = self._counting.save()
        expected = self._run_eagerly(wanted, inputs)
        handoff = self.choice.best(hands_over=bool(wanted.layers))
        if handoff is not None:
            try:
                self.handoff = handoff
                # Not a step of the hand-off: nothing runs yet that the CPU would have to answer.
                work = partial(self._queue, wanted, inputs, handoff)
                recording = recorder.record(work, expected.shape)
                try:
                    restore()
                    result = self._replay(inputs, recording, handoff, wanted)
                    _check_same(result, expected)
                except BaseException:
                    # A lost device frees nothing any more.
                    with suppress(RuntimeError):
                        recording.drop()
                    raise
            except FAILURES as error:
                if is_exhaustion(error):
                    restore()
                    raise OutOfDeviceMemoryError(
                        f"the device has no room to record a step of {len(wanted.x)} tokens",
                        remedy="use a smaller {vram_budget}",
                    ) from error
                self._abandon(handoff, error)
            else:
                entry.record = recording, handoff
                return result
        restore()
        return self._run_eagerly(wanted, inputs)

    def _replay(
        self, inputs: "DeviceBatch", recording: CudaRecording, handoff: Handoff, wanted: _Run
    ) -> FloatArray:
        inputs.fill(wanted.batch, wanted.x)
        with self._under_way(handoff, wanted):
            recording.replay()
            self._wait()
        return recording.result()

    def _queue(self, wanted: _Run, inputs: "DeviceBatch | None", handoff: Handoff) -> Activations:
        """Queue a run from the copy of its inputs to the copy of its counts."""
        if inputs is None:
            output = wanted.queue(wanted.x, wanted.batch, handoff)
        else:
            # Sent each time, since a run modifies its x.
            inputs.send()
            output = wanted.queue(inputs.x, inputs, handoff)
        self._counting.fetch()
        return output

    def _abandon(self, handoff: Handoff, error: Exception) -> None:
        """Record no more with a hand-off that failed, and drop what no step will replay."""
        if isinstance(error, _LostDeviceError):
            raise error
        self.choice.abandon(handoff, error)
        self.forget()

    @contextmanager
    def _under_way(self, handoff: Handoff, wanted: _Run) -> Iterator[None]:
        """Open the context in which work is queued and waited for."""
        self.handoff = handoff
        try:
            handoff.begin_step(len(wanted.x), wanted.layers)
            yield
        except BaseException as error:
            # Raises the first error, not its consequences. The CPU's half would wait for a device
            # that has stopped, and the device for a CPU that was never signalled.
            with suppress(*FAILURES):
                handoff.abort_step()
            with suppress(*FAILURES):
                self._wait()
            if _is_of_device(error):
                raise _lost(error) from error
            raise
        handoff.end_step()

    def _wait(self) -> None:
        """Wait until the device is idle."""
        if self._recorder is not None:
            try:
                self._recorder.synchronize()
            except RuntimeError as error:
                raise _lost(error) from error


def _is_of_device(error: BaseException) -> bool:
    """Test whether torch or Triton reports an error of the driver, except for memory."""
    is_driver = isinstance(error, RuntimeError) and any(word in str(error) for word in _DRIVER_SAYS)
    return is_driver and not is_out_of_memory(error)


def _lost(error: BaseException) -> _LostDeviceError:
    first_line = next(iter(str(error).splitlines()), type(error).__name__)
    return _LostDeviceError(f"the GPU failed: {first_line}", remedy="take {device='cpu'}")


def _check_same(result: FloatArray, expected: FloatArray) -> None:
    if np.array_equal(result, expected, equal_nan=True):
        return
    difference = float(np.abs(result - expected).max())
    largest = float(np.abs(expected).max())
    # Not "greater than": NaN must not count as agreement.
    if not difference <= TOLERANCE * largest:
        raise DeviceError(
            f"the recorded step differs by {difference:.3g} from the eager one, whose largest "
            f"number is {largest:.3g}"
        )
