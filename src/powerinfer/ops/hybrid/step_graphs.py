"""Steps recorded as one CUDA graph each and replayed; what cannot be recorded runs eagerly.

A step is run eagerly a few times, which compiles its kernels, then recorded with one way of handing
layers to the CPU, replayed, and compared with the eager result. A way that cannot be recorded,
fails or gives other numbers is dropped for the next one; in the end steps run eagerly for good.
Running a step again is harmless: it writes the same keys and values to the same places.
"""

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from powerinfer.errors import DeviceError
from powerinfer.ops.gpu.recorder import Activations, Inputs, Recorder, Recording
from powerinfer.ops.hybrid.handoff.choice import FAILURES, HandoffChoice, SwitchedHandoff
from powerinfer.ops.hybrid.handoff.methods import Handoff
from powerinfer.values import Batch, FloatArray

if TYPE_CHECKING:
    # It comes with the kernels, which recording does not need.
    from powerinfer.ops.gpu.batch import DeviceBatch

__all__ = ["StepGraphs", "StepRun"]

# Largest difference to the eager result, as a share of its largest number. Equal bits are usual;
# a library may choose another algorithm while it is being recorded.
TOLERANCE = 1e-3


StepRun: TypeAlias = Callable[[Activations, "Batch | DeviceBatch"], Activations]
"""The layers of a step: called with x and its batch, or with static copies of both."""

# A weak reference to the key or the key itself, the shape of x, the number of sequences.
_Name: TypeAlias = tuple[Hashable, tuple[int, ...], int]


@dataclass(slots=True)
class _Record:
    """A step that was recorded."""

    recording: Recording
    handoff: Handoff
    layers: tuple[int, ...]


@dataclass(slots=True)
class _Entry:
    """Steps of one key and one size."""

    inputs: Inputs
    num_seen: int = 0
    record: _Record | None = None


class StepGraphs:
    """Runs steps, recorded where that works.

    Attributes:
        handoff: what the operations of a step must signal and wait with.
        choice: the ways of handing over that may be recorded, and what they cost.
    """

    def __init__(
        self,
        recorder: Recorder,
        eager: Handoff,
        choice: HandoffChoice,
        *,
        save_counts: Callable[[], Callable[[], None]] = lambda: lambda: None,
        max_tokens: int = 8,
        num_warm_ups: int = 2,
        max_entries: int = 12,
    ) -> None:
        """Prepare; nothing is measured or recorded before the first step that can be.

        Args:
            recorder: of the device.
            eager: way of handing over for steps that are not recorded.
            choice: the ways for steps that are.
            save_counts: returns what puts the counts of a step (neurons, scores) back to where they
                are now: of the runs of one and the same step, one shall count.
            max_tokens: steps of more tokens are not recorded.
            num_warm_ups: eager steps of the same key and size before recording.
            max_entries: keys and sizes remembered; the one longest unused goes.
        """
        self.handoff = SwitchedHandoff(eager)
        self.choice = choice
        self._recorder = recorder
        self._eager = eager
        self._save_counts = save_counts
        self._max_tokens = max_tokens
        self._num_warm_ups = num_warm_ups
        self._max_entries = max_entries
        self._entries: OrderedDict[_Name, _Entry] = OrderedDict()

    @property
    def num_records(self) -> int:
        """Steps that are recorded now."""
        return sum(entry.record is not None for entry in self._entries.values())

    @property
    def handoff_figures(self) -> dict[str, dict[str, float]]:
        """What the ways that were measured cost: name to `median_s` and `p99_s`."""
        return {name: asdict(found) for name, found in self.choice.figures.items()}

    def working(self) -> AbstractContextManager[None]:
        """Where all work of the device must be queued; may be entered within itself."""
        return self._recorder.working()

    def run(self, x: FloatArray, batch: Batch, run: StepRun, key: Hashable | None) -> FloatArray:
        """Do one step; see `powerinfer.ops.protocol.Ops.step`.

        Args:
            x: f32[num_tokens, hidden_size].
            batch: its tokens.
            run: called with x and batch, or with static copies of both on the device; returns a
                tensor or an array, f32[num_tokens, columns].
            key: an object (a weak reference to it is kept where it allows one) or a value; None for
                a step that may not be recorded.

        Raises:
            DeviceError: the CPU's half failed in an eager step.
        """
        with self.working():
            if key is None or self.choice.is_exhausted or batch.num_tokens > self._max_tokens:
                return self._run_eagerly(run, x, batch)
            entry = self._entry(key, x, batch)
            if entry.record is not None:
                return self._replay_or_run(entry, entry.record, x, batch, run)
            entry.num_seen += 1
            if entry.num_seen <= self._num_warm_ups:
                return self._run_filled(entry.inputs, x, batch, run)
            return self._record(entry, x, batch, run)

    def forget(self, key: Hashable | None = None) -> None:
        """Drop the records of a key, or all."""
        owner = None if key is None else _reference(key)
        self._drop([name for name in self._entries if owner is None or name[0] == owner])

    def _entry(self, key: Hashable, x: FloatArray, batch: Batch) -> _Entry:
        name = (_reference(key), x.shape, len(batch.block_tables))
        entry = self._entries.get(name)
        if entry is None:
            self._drop([name for name in self._entries if _is_gone(name[0])])
            self._drop(list(self._entries)[: max(0, len(self._entries) + 1 - self._max_entries)])
            entry = self._entries[name] = _Entry(self._recorder.inputs(x, batch))
        self._entries.move_to_end(name)
        return entry

    def _run_eagerly(
        self, run: StepRun, x: Activations, batch: "Batch | DeviceBatch"
    ) -> FloatArray:
        self.handoff.chosen = self._eager
        self.handoff.begin_step(len(x), ())
        result = self._recorder.to_host(run(x, batch))
        self.handoff.end_step()
        return result

    def _run_filled(self, inputs: Inputs, x: FloatArray, batch: Batch, run: StepRun) -> FloatArray:
        # A step adds to its x in place, so inputs serve once.
        inputs.fill(x, batch)
        return self._run_eagerly(run, inputs.x, inputs.batch)

    def _record(self, entry: _Entry, x: FloatArray, batch: Batch, run: StepRun) -> FloatArray:
        restore = self._save_counts()
        expected = self._run_filled(entry.inputs, x, batch, run)
        layers = tuple(self.handoff.layers)
        while (way := self.choice.best(hands_over=bool(layers))) is not None:
            try:
                record = entry.record = _Record(self._captured(entry.inputs, way, run), way, layers)
                restore()
                result = self._replay(entry.inputs, record, x, batch)
                _check_same(result, expected)
            except FAILURES as error:
                self._give_up(way, error)
            else:
                return result
        restore()
        return self._run_filled(entry.inputs, x, batch, run)

    def _captured(self, inputs: Inputs, way: Handoff, run: StepRun) -> Recording:
        # Not `begin_step`: nothing happens yet that the CPU would have to answer.
        self.handoff.chosen = way
        return self._recorder.record(lambda: run(inputs.x, inputs.batch))

    def _replay(self, inputs: Inputs, record: _Record, x: FloatArray, batch: Batch) -> FloatArray:
        inputs.fill(x, batch)
        record.handoff.begin_step(len(x), record.layers)
        try:
            record.recording.replay()
        finally:
            # Ctrl-C too must find the device idle and the CPU's half at rest.
            self._recorder.synchronize()
            record.handoff.end_step()
        return record.recording.result()

    def _replay_or_run(
        self, entry: _Entry, record: _Record, x: FloatArray, batch: Batch, run: StepRun
    ) -> FloatArray:
        try:
            return self._replay(entry.inputs, record, x, batch)
        except FAILURES as error:
            self._give_up(record.handoff, error)
            return self._run_filled(entry.inputs, x, batch, run)

    def _give_up(self, way: Handoff, error: BaseException) -> None:
        self.choice.give_up(way, error)
        for entry in self._entries.values():
            if entry.record is not None and entry.record.handoff is way:
                entry.record.recording.drop()
                entry.record = None

    def _drop(self, names: Iterable[_Name]) -> None:
        for name in names:
            entry = self._entries.pop(name)
            if entry.record is not None:
                entry.record.recording.drop()


def _reference(key: Hashable) -> Hashable:
    """A weak reference, equal to others to the same object, or the key where there is none."""
    try:
        return weakref.ref(key)
    except TypeError:
        return key


def _is_gone(reference: Hashable) -> bool:
    return isinstance(reference, weakref.ref) and reference() is None


def _check_same(result: FloatArray, expected: FloatArray) -> None:
    if np.array_equal(result, expected, equal_nan=True):
        return
    difference = float(np.abs(result - expected).max())
    largest = float(np.abs(expected).max())
    # Not "greater than": a NaN is no agreement.
    if not difference <= TOLERANCE * largest:
        raise DeviceError(
            f"the recorded step differs by {difference:.3g} from the eager one, whose largest "
            f"number is {largest:.3g}"
        )
