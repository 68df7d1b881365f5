"""Slots of recurrent state: which sequences hold which, and how many positions each contains.

A slot is the state of one sequence in all recurrent layers (`StateLayer`). A step reads one slot of
a sequence and writes another (`Batch.state_sources`, `state_targets`), and never one that somebody
else holds. So nothing is ever copied: a fork begins with the slot of its parent, a snapshot is one
more holder of a slot, and a step that was interrupted reads its source again.

Ctrl-C may come between any two lines. The slots of a sequence change by one assignment; all else
follows from them and from what the keeper holds, and is not stored.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from typing import Protocol

import numpy as np

from powerinfer.errors import PowerInferError, PromptError
from powerinfer.values import IntArray

__all__ = ["SLOTS_PER_SEQUENCE", "SlotKeeper", "StateSlots", "num_slots_for"]

SLOTS_PER_SEQUENCE = 2
"""Slots of a running sequence: the one that its step reads, and the one that it writes."""


def num_slots_for(num_texts: int, num_snapshots: int) -> int:
    """Slots for texts that run at once, one sequence beside them, and snapshots."""
    return SLOTS_PER_SEQUENCE * (num_texts + 1) + num_snapshots


class SlotKeeper(Protocol):
    """Keeps slots that no sequence needs to hold, and gives them back on request."""

    @property
    def slots(self) -> Collection[int]:
        """Slots it keeps."""
        ...

    def reclaim_slot(self) -> None:
        """Drop a slot that no sequence holds, if there is one."""
        ...

    def forget_states(self, sequence: Hashable, num_positions: int) -> None:
        """Drop what depends on the positions of a sequence after the first `num_positions`."""
        ...


class StateSlots:
    """Holders of slots: sequences, and the keeper (the prefix tree).

    There are always enough slots for the sequences: a new one is refused if not all could have
    `SLOTS_PER_SEQUENCE`. The keeper has what is left.

    Attributes:
        num_slots: slots of each layer.
        bytes_per_slot: bytes of a slot in all layers.
    """

    def __init__(self, num_slots: int, bytes_per_slot: int = 0) -> None:
        """Start without sequences."""
        self.num_slots = num_slots
        self.bytes_per_slot = bytes_per_slot
        # By sequence: pairs of a number of positions and the slot that contains them.
        self._held: dict[Hashable, tuple[tuple[int, int], ...]] = {}
        self._keeper: Callable[[], SlotKeeper | None] = lambda: None

    @property
    def num_used(self) -> int:
        """Number of slots that sequences hold, each counted once."""
        return len(set(self._held_slots()))

    @property
    def num_unused(self) -> int:
        """Number of slots that only the keeper holds; it gives them back when they are needed."""
        return len({*self._kept} - {*self._held_slots()})

    def is_unused(self, slot: int) -> bool:
        """Return whether no sequence holds the slot."""
        return slot not in self._held_slots()

    def set_keeper(self, keeper: SlotKeeper) -> None:
        """Make `keeper`, held by a weak reference, the one to ask when no slot is free."""
        self._keeper = weakref.ref(keeper)

    def reserve(self, sequence: Hashable) -> None:
        """Promise a sequence its slots; others cannot have them until it is freed.

        Raises:
            PromptError: there are too few.
        """
        most = self.num_slots // SLOTS_PER_SEQUENCE
        if sequence not in self._held and len(self._held) >= most:
            raise PromptError(
                f"the states of {most} texts are in use, and there is no room for more",
                remedy="compute fewer texts at once ({parallel})",
            )
        self._held.setdefault(sequence, ())

    def slot_of(self, sequence: Hashable, num_positions: int) -> int | None:
        """Return the slot of a sequence with the state after `num_positions`, if it holds it."""
        held = dict(self._held.get(sequence, ()))
        return held.get(num_positions)

    def last(self, sequence: Hashable, num_positions: int) -> int:
        """Return the most positions, up to `num_positions`, whose state a sequence holds."""
        held = (length for length, _ in self._held.get(sequence, ()) if length <= num_positions)
        return max(held, default=0)

    def begin(self, sequence: Hashable, slot: int | None, num_positions: int) -> None:
        """Let a sequence hold just this slot, which contains `num_positions`; None: no slot.

        Raises:
            PromptError: there are too few slots for another sequence.
        """
        self.reserve(sequence)
        self._held[sequence] = () if slot is None else ((num_positions, slot),)

    def fork(self, parent: Hashable, child: Hashable, num_positions: int) -> None:
        """Let `child` hold just the state of `parent` after `num_positions`.

        Raises:
            PowerInferError: `parent` does not hold it.
            PromptError: there are too few slots for another sequence.
        """
        self.begin(child, self.source(parent, num_positions), num_positions)

    def truncate(self, sequence: Hashable, num_positions: int) -> None:
        """Release the slots of a sequence with more than `num_positions`."""
        if (keeper := self._keeper()) is not None:
            keeper.forget_states(sequence, num_positions)
        held = self._held.get(sequence)
        if held is not None:
            self._held[sequence] = tuple(pair for pair in held if pair[0] <= num_positions)

    def free(self, sequence: Hashable) -> None:
        """Release all slots and promises of a sequence, which may be unknown."""
        self._held.pop(sequence, None)

    def assign(self, parts: Sequence[tuple[Hashable, int, int]]) -> tuple[IntArray, IntArray]:
        """Choose the slots of a step, and let the sequences hold them.

        Args:
            parts: sequences, each with its positions before and after the step.

        Returns:
            i32[num_parts] slots to read, -1 for a new sequence, and i32[num_parts] slots to write.

        Raises:
            PowerInferError: a sequence does not hold its state after the positions before.
            PromptError: there are too few slots for a new sequence.
        """
        num_holders = Counter((*self._held_slots(), *self._kept))
        pairs = [self._assign(*part, num_holders) for part in parts]
        chosen = np.array(pairs, np.int32).reshape(-1, 2)
        return chosen[:, 0].copy(), chosen[:, 1].copy()

    def _assign(
        self, sequence: Hashable, start: int, end: int, num_holders: Counter[int]
    ) -> tuple[int, int]:
        self.reserve(sequence)
        source = self.source(sequence, start)
        slots = [slot for _, slot in self._held[sequence] if slot != source]
        read = () if source is None else ((start, source),)
        target = next((slot for slot in slots if num_holders[slot] == 1), None)
        if target is None:
            # Only now are there certainly enough: it may hold a slot that the keeper can give back.
            self._held[sequence] = read
            target = self._take()
        self._held[sequence] = (*read, (end, target))
        return (-1 if source is None else source), target

    def source(self, sequence: Hashable, num_positions: int) -> int | None:
        """Return the slot with the state after `num_positions`; None after none."""
        slot = self.slot_of(sequence, num_positions) if num_positions else None
        if slot is None and num_positions:
            raise PowerInferError(
                f"the state after {num_positions} positions of a sequence is not there any more: "
                "compute it again from its first token"
            )
        return slot

    def _take(self) -> int:
        """Return the lowest slot that nobody holds; ask the keeper if there is none."""
        if self._lowest() is None and (keeper := self._keeper()) is not None:
            keeper.reclaim_slot()
        slot = self._lowest()
        if slot is None:
            raise PowerInferError("every slot of state is in use")
        return slot

    def _lowest(self) -> int | None:
        held = {*self._held_slots(), *self._kept}
        return next((slot for slot in range(self.num_slots) if slot not in held), None)

    def _held_slots(self) -> Iterator[int]:
        return (slot for held in list(self._held.values()) for _, slot in held)

    @property
    def _kept(self) -> Collection[int]:
        keeper = self._keeper()
        return () if keeper is None else keeper.slots
