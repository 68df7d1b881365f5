"""Decode steps that were run once from Python and then run again as one native call.

Between two native calls the threads fall asleep and memory is idle, while weights push Python's own
data out of the caches: in a step of seven calls a layer that is a tenth of the time.
"""

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Self, TypeAlias

import numpy as np

from powerinfer import _core
from powerinfer.values import FloatArray

__all__ = ["MAX_RECORDED_TOKENS", "StepRecord", "StepRecords"]

MAX_RECORDED_TOKENS = 8
"""A record holds all its activations, some 4 MB per token at 7B; of many tokens Python's share is
small."""

# Records of so many caches and numbers of tokens; the one longest unused goes.
_MAX_RECORDS = 4


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A step in its own arrays.

    Attributes:
        calls: that it made.
        x: f32[num_tokens, hidden_size], where it found the embedded tokens; it changes them.
        batch: where it found the tokens.
        out: f32[num_tokens, vocab_size], where it left its result.
    """

    calls: _core.StepRecord
    x: FloatArray
    batch: _core.Batch
    out: FloatArray

    @classmethod
    def of(
        cls,
        team: _core.ThreadTeam,
        x: FloatArray,
        batch: _core.Batch,
        run: Callable[[], FloatArray],
    ) -> Self:
        """Run a step and record the calls of this thread.

        Args:
            team: that runs it.
            x: f32[num_tokens, hidden_size], given away.
            batch: its tokens, none of them prompt; given away.
            run: runs it on these two and returns its result.
        """
        calls = _core.StepRecord()
        calls.begin(team)
        try:
            out = run()
        finally:
            calls.end(team)
        return cls(calls, x, batch, out)

    @property
    def is_complete(self) -> bool:
        """False where the step did what later ones may do otherwise: it must not run again."""
        return self.calls.is_complete

    def run(self, team: _core.ThreadTeam, x: FloatArray, batch: _core.Batch) -> _core.FFNStats:
        """Run the step on other tokens, as many as before; returns what its FFNs did.

        Args:
            team: that recorded it.
            x: f32[num_tokens, hidden_size], the tokens embedded.
            batch: where they stand.
        """
        np.copyto(self.x, x)
        return self.calls.run(team, self.batch, batch)

    def result(self) -> FloatArray:
        """What the last run returned: a copy, the next one writes over it."""
        return self.out.copy()


# A weak reference to the key (or a key that allows none), and the number of tokens.
_Size: TypeAlias = tuple[Hashable, int]


class StepRecords:
    """Records by the key of their program (`LayerProgram.key`) and their number of tokens."""

    def __init__(self) -> None:
        """Start with none."""
        self._records: OrderedDict[_Size, StepRecord] = OrderedDict()

    def __len__(self) -> int:
        """Records that are held."""
        return len(self._records)

    def find(self, key: Hashable, num_tokens: int) -> StepRecord | None:
        """The record of such steps, if there is one."""
        size = (_reference(key), num_tokens)
        record = self._records.get(size)
        if record is not None:
            self._records.move_to_end(size)
        return record

    def keep(self, key: Hashable, num_tokens: int, record: StepRecord) -> None:
        """Hold a record as long as its key lives and others are not used more recently."""
        reference = _reference(key, self._forget)
        self._records[reference, num_tokens] = record
        while len(self._records) > _MAX_RECORDS:
            self._records.popitem(last=False)

    def _forget(self, reference: Hashable) -> None:
        # Of a copy: what is freed meanwhile may have a key die, which comes here again.
        for size in [size for size in list(self._records) if size[0] is reference]:
            self._records.pop(size, None)


def _reference(
    key: Hashable, forget: Callable[[weakref.ref[Hashable]], None] | None = None
) -> Hashable:
    """A weak reference, equal to others to the same object, or the key where there is none."""
    try:
        return weakref.ref(key, forget)
    except TypeError:
        return key
