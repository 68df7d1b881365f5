"""Runs of layers recorded as a CUDA graph each and replayed; what cannot be recorded runs eagerly.

A run is executed eagerly a few times, which compiles its kernels, then recorded, replayed, and
compared with the eager result. If the hand-off cannot be recorded, fails or gives other numbers,
runs stay eager. Repeating a run is harmless: it writes the same keys and values to the same places.

However a run ends, even by Ctrl-C or a failure of the device, it leaves the device and the CPU's
half idle.
"""

import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from powerinfer.errors import DeviceError, OutOfDeviceMemoryError
from powerinfer.ops.gpu.memory import is_out_of_memory, release_cached
from powerinfer.ops.gpu.recorder import Activations, CudaRecorder, StaticInputs
from powerinfer.ops.hybrid.handoff import (
    FAILURES,
    Handoff,
    HandoffChoice,
    cause_of,
    is_exhaustion,
)
from powerinfer.ops.hybrid.records import RunEntries, RunEntry, RunRecord
from powerinfer.values import Batch, FloatArray

if TYPE_CHECKING:
    # It comes with the kernels, which recording does not need.
    from powerinfer.ops.gpu.cache import DeviceBatch

__all__ = ["Counting", "QueueRun", "StepGraphs"]

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

# Largest difference to the eager result, as a share of its largest number. Equal bits are usual;
# a library may choose another algorithm while it is being recorded.
TOLERANCE = 1e-3

_DRIVER_SAYS = ("CUDA error", "HIP error", "Triton Error [")

QueueRun: TypeAlias = Callable[[Activations, "Batch | DeviceBatch", Handoff], Activations]
"""Queues a run of layers: called with x and its batch, or with static copies of both, and with the
hand-off to signal by; returns f32[num_tokens, columns]."""


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


class _LostDeviceError(DeviceError):
    """The device itself failed: no hand-off is to blame, and nothing can be retried."""


class StepGraphs:
    """Executes runs of layers, recorded if possible.

    Attributes:
        choice: the method that may be recorded.
        is_on_trial: a lack of memory for a record is raised, so that less is placed. Otherwise
            other records are dropped, and if that does not help this size is not recorded.
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
            recorder: recorder of the device; None for torch's cpu device, which records nothing.
            eager: hand-off of runs that are not recorded.
            choice: hand-offs of recorded runs.
            counting: counts of the device.
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
        self._entries = RunEntries(max_sizes)

    @property
    def num_records(self) -> int:
        """Number of recorded runs."""
        return self._entries.num_records

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
        """Execute one run of layers; see `powerinfer.ops.protocol.Ops.step`.

        Args:
            x: f32[num_tokens, hidden_size].
            batch: tokens of the step.
            queue: queues the layers.
            key: see `LayerProgram.key`; None for a step that may not be recorded.
            number: number of the run in its step.
            layers: layers of the exchange that it hands to the CPU, in the order of their signals.

        Returns:
            The result of `queue`, on the host.

        Raises:
            OutOfDeviceMemoryError: not even an eager run fits; on trial, a record does not.
            DeviceError: the CPU's half failed in an eager run, or the device failed.
        """
        wanted = _Run(x, batch, queue, layers)
        with self.working():
            is_small = batch.num_tokens <= self._max_tokens
            if key is None or self._recorder is None or self.choice.is_exhausted or not is_small:
                return self._with_room(partial(self._run_eagerly, wanted))
            entry = self._entries.find(key, x.shape, len(batch.block_tables), number)
            try:
                return self._run_or_replay(entry, self._recorder, wanted)
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
        self._entries.forget(key)

    def _run_or_replay(self, entry: RunEntry, recorder: CudaRecorder, wanted: _Run) -> FloatArray:
        """Execute what an entry is due: eager steps, the record, its replays."""
        if entry.is_eager:
            return self._with_room(partial(self._run_eagerly, wanted))
        if entry.record is not None and entry.inputs is not None:
            return self._replay_or_run(entry.inputs, entry.record, wanted)
        inputs = entry.inputs
        if inputs is None:
            make = partial(recorder.inputs, wanted.x, wanted.batch)
            inputs = entry.inputs = self._with_room(make, entry)
        entry.num_warm_ups += 1
        if entry.num_warm_ups <= self._num_warm_ups:
            return self._with_room(partial(self._run_filled, inputs, wanted))
        return self._with_room(partial(self._record, inputs, entry, recorder, wanted), entry)

    # Eager runs.

    def _run_eagerly(
        self,
        wanted: _Run,
        x: Activations | None = None,
        batch: "Batch | DeviceBatch | None" = None,
    ) -> FloatArray:
        """Queue the run and wait for it, with static copies of x and batch if they are given."""
        with self._under_way(self._eager, wanted):
            output = wanted.queue(
                wanted.x if x is None else x,
                wanted.batch if batch is None else batch,
                self._eager,
            )
            self._counting.fetch()
            return self._to_host(output)

    def _run_filled(self, inputs: StaticInputs, wanted: _Run) -> FloatArray:
        # A run modifies its x, so inputs serve once.
        inputs.fill(wanted.x, wanted.batch)
        return self._run_eagerly(wanted, inputs.x, inputs.batch)

    # Recorded runs.

    def _record(
        self, inputs: StaticInputs, entry: RunEntry, recorder: CudaRecorder, wanted: _Run
    ) -> FloatArray:
        restore = self._counting.save()
        expected = self._run_filled(inputs, wanted)
        while (handoff := self.choice.best(hands_over=bool(wanted.layers))) is not None:
            try:
                self.handoff = handoff
                # Not a step of the hand-off: nothing runs yet that the CPU would have to answer.
                queue = partial(wanted.queue, inputs.x, inputs.batch, handoff)
                record = RunRecord(recorder.record(queue), handoff)
                with _dropped_on_failure(record):
                    restore()
                    result = self._replay(inputs, record, wanted)
                    _check_same(result, expected)
            except FAILURES as error:
                if is_exhaustion(error):
                    restore()
                    raise OutOfDeviceMemoryError(
                        f"the device has no room to record a step of {len(wanted.x)} tokens",
                        remedy="use a smaller {vram_budget}",
                    ) from error
                self._abandon(handoff, error)
            else:
                entry.record = record
                return result
        restore()
        return self._run_filled(inputs, wanted)

    def _replay(self, inputs: StaticInputs, record: RunRecord, wanted: _Run) -> FloatArray:
        inputs.fill(wanted.x, wanted.batch)
        with self._under_way(record.handoff, wanted):
            record.recording.replay()
            self._counting.fetch()
            self._wait()
        return record.recording.result()

    def _replay_or_run(self, inputs: StaticInputs, record: RunRecord, wanted: _Run) -> FloatArray:
        try:
            return self._replay(inputs, record, wanted)
        except FAILURES as error:
            if is_exhaustion(error):
                raise
            self._abandon(record.handoff, error)
            return self._run_filled(inputs, wanted)

    def _abandon(self, handoff: Handoff, error: Exception) -> None:
        if isinstance(error, _LostDeviceError):
            raise error
        self.choice.abandon(handoff, error)
        for entry in self._entries:
            if entry.record is not None and entry.record.handoff is handoff:
                entry.record.recording.drop()
                entry.record = None

    # Both.

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

    def _to_host(self, values: Activations) -> FloatArray:
        if self._recorder is not None:
            return self._recorder.to_host(values)
        return values if isinstance(values, np.ndarray) else np.array(values.numpy())

    # Memory.

    def _with_room(self, attempt: Callable[[], _T], entry: RunEntry | None = None) -> _T:
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
            for other in self._entries:
                if other is not entry:
                    other.drop()
            if self.num_records == num_records:
                raise
        if entry is not None:
            entry.has_taken_room = True
        # Not inside `except`, where the frames of the failed attempt still hold memory.
        release_cached()
        return attempt()


@contextmanager
def _dropped_on_failure(record: RunRecord) -> Iterator[None]:
    """Drop a record that was not verified, even after Ctrl-C."""
    try:
        yield
    except BaseException:
        # A lost device frees nothing any more.
        with suppress(RuntimeError):
            record.recording.drop()
        raise


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
