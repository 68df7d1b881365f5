"""Which runs of layers are recorded: by the key and size of their step, the latest ones only."""

import weakref
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from powerinfer.ops.gpu.recorder import CudaRecording, StaticInputs
from powerinfer.ops.hybrid.handoff.methods import Handoff

__all__ = ["RunEntries", "RunEntry", "RunRecord"]

# A weak reference to the key or the key itself, the shape of x, the number of sequences.
_Size: TypeAlias = tuple[Hashable, tuple[int, ...], int]


@dataclass(slots=True)
class RunRecord:
    """A run that was recorded."""

    recording: CudaRecording
    handoff: Handoff


@dataclass(slots=True)
class RunEntry:
    """A run of layers for one key and size.

    Attributes:
        inputs: that records of it read.
        num_warm_ups: eager steps so far.
        record: of it, if there is one.
        has_taken_room: other records were dropped for it once.
        is_eager: there is no room for a record.
    """

    inputs: StaticInputs | None = None
    num_warm_ups: int = 0
    record: RunRecord | None = None
    has_taken_room: bool = False
    is_eager: bool = False

    def drop(self) -> bool:
        """Give back what the record takes; it may be made again. Whether there was one."""
        record, self.record, self.inputs, self.num_warm_ups = self.record, None, None, 0
        if record is not None:
            record.recording.drop()
        return record is not None


class RunEntries:
    """Entries by key, size and number of the run."""

    def __init__(self, max_sizes: int) -> None:
        """Start with none; of more than so many keys and sizes the one longest unused goes."""
        self._max_sizes = max_sizes
        self._sizes: OrderedDict[_Size, dict[int, RunEntry]] = OrderedDict()

    def __iter__(self) -> Iterator[RunEntry]:
        """All of them."""
        for entries in self._sizes.values():
            yield from entries.values()

    @property
    def num_records(self) -> int:
        """Those that are recorded."""
        return sum(entry.record is not None for entry in self)

    def find(
        self, key: Hashable, shape: tuple[int, ...], num_sequences: int, number: int
    ) -> RunEntry:
        """The entry of a run; a new one if there was none.

        Args:
            key: an object (a weak reference to it is kept where it allows one) or a value.
            shape: of x.
            num_sequences: of the step.
            number: of the run in its step.
        """
        size = (_reference(key), shape, num_sequences)
        entries = self._sizes.get(size)
        if entries is None:
            self._drop([size for size in self._sizes if _is_gone(size[0])])
            self._drop(list(self._sizes)[: max(0, len(self._sizes) + 1 - self._max_sizes)])
            entries = self._sizes[size] = {}
        self._sizes.move_to_end(size)
        return entries.setdefault(number, RunEntry())

    def forget(self, key: Hashable | None = None) -> None:
        """Drop the entries of a key, or all."""
        owner = None if key is None else _reference(key)
        self._drop([size for size in self._sizes if owner is None or size[0] == owner])

    def _drop(self, sizes: Sequence[_Size]) -> None:
        for size in sizes:
            for entry in self._sizes.pop(size).values():
                entry.drop()


def _reference(key: Hashable) -> Hashable:
    """A weak reference, equal to others to the same object, or the key where there is none."""
    try:
        return weakref.ref(key)
    except TypeError:
        return key


def _is_gone(reference: Hashable) -> bool:
    return isinstance(reference, weakref.ref) and reference() is None
