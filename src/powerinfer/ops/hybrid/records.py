"""Records of runs of layers by the key and size of their step; keeps the latest ones."""

import weakref
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from powerinfer.ops.cpu.ops import weak_key
from powerinfer.ops.gpu.recorder import CudaRecording, StaticInputs
from powerinfer.ops.hybrid.handoff import Handoff

__all__ = ["RunEntries", "RunEntry", "RunRecord"]

# A `weak_key`, the shape of x, the number of sequences.
_Size: TypeAlias = tuple[Hashable, tuple[int, ...], int]


@dataclass(slots=True)
class RunRecord:
    """A recorded run."""

    recording: CudaRecording
    handoff: Handoff


@dataclass(slots=True)
class RunEntry:
    """A run of layers for one key and size.

    Attributes:
        inputs: arguments that its records read.
        num_warm_ups: eager steps so far.
        has_taken_room: other records were dropped for it once.
        is_eager: there is no room for a record.
    """

    inputs: StaticInputs | None = None
    num_warm_ups: int = 0
    record: RunRecord | None = None
    has_taken_room: bool = False
    is_eager: bool = False

    def drop(self) -> bool:
        """Release the record, which may be made again; True if there was one."""
        record, self.record, self.inputs, self.num_warm_ups = self.record, None, None, 0
        if record is not None:
            record.recording.drop()
        return record is not None


class RunEntries:
    """Entries by key, size and number of the run."""

    def __init__(self, max_sizes: int) -> None:
        """Start with none; keeps this number of the most recently used keys and sizes."""
        self._max_sizes = max_sizes
        self._sizes: OrderedDict[_Size, dict[int, RunEntry]] = OrderedDict()

    def __iter__(self) -> Iterator[RunEntry]:
        """Iterate over all entries."""
        for entries in self._sizes.values():
            yield from entries.values()

    @property
    def num_records(self) -> int:
        """Number of recorded runs."""
        return sum(entry.record is not None for entry in self)

    def find(
        self, key: Hashable, shape: tuple[int, ...], num_sequences: int, number: int
    ) -> RunEntry:
        """Return the entry of a run, a new one if there was none.

        Args:
            key: key of the program, see `LayerProgram.key`.
            shape: shape of x.
            num_sequences: sequences of the step.
            number: number of the run in its step.
        """
        size = (weak_key(key), shape, num_sequences)
        entries = self._sizes.get(size)
        if entries is None:
            self._drop([size for size in self._sizes if _is_gone(size[0])])
            self._drop(list(self._sizes)[: max(0, len(self._sizes) + 1 - self._max_sizes)])
            entries = self._sizes[size] = {}
        self._sizes.move_to_end(size)
        return entries.setdefault(number, RunEntry())

    def forget(self, key: Hashable | None = None) -> None:
        """Drop the entries of a key, or all."""
        owner = None if key is None else weak_key(key)
        self._drop([size for size in self._sizes if owner is None or size[0] == owner])

    def _drop(self, sizes: Sequence[_Size]) -> None:
        for size in sizes:
            for entry in self._sizes.pop(size).values():
                entry.drop()


def _is_gone(reference: Hashable) -> bool:
    return isinstance(reference, weakref.ref) and reference() is None
