"""Slots of state: every sequence and every snapshot keeps its own state whatever the others do."""

import sys
from collections.abc import Callable, Hashable
from types import FrameType
from typing import Any

from hypothesis import assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from powerinfer.errors import PromptError
from powerinfer.kvcache.state_slots import SLOTS_PER_SEQUENCE, StateSlots

NUM_SLOTS = 8

names = st.integers(0, 5)
tokens = st.lists(st.integers(0, 2), min_size=1, max_size=4)


class Snapshots:
    """A keeper, the oldest first."""

    def __init__(self, states: StateSlots) -> None:
        self.states = states
        self.slots: dict[int, list[int]] = {}
        states.set_keeper(self)

    def forget_states(self, sequence: Hashable, num_positions: int) -> None:
        """Keep all: they are no sequence's."""

    def reclaim_slot(self) -> None:
        for slot in self.slots:
            if self.states.is_unused(slot):
                del self.slots[slot]
                return


def interrupted(work: Callable[[], object], line: int) -> None:
    """Run something up to some line of the file that hands out slots."""
    rest = [line]

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.endswith("state_slots.py"):
            return None
        rest[0] -= event == "line"
        if not rest[0]:
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    try:
        sys.settrace(trace)
        work()
    except (KeyboardInterrupt, PromptError):
        pass
    finally:
        sys.settrace(before)


class SharedSlots(RuleBasedStateMachine):
    """Any order of calls, against what every slot should contain."""

    def __init__(self) -> None:
        super().__init__()
        self.states = StateSlots(NUM_SLOTS)
        self.snapshots = Snapshots(self.states)
        self.content: dict[int, list[int]] = {}
        # What is computed of each sequence; positions at which each holds its state.
        self.held: dict[int, list[int]] = {}

    @property
    def has_room(self) -> bool:
        return len(self.held) < NUM_SLOTS // SLOTS_PER_SEQUENCE

    def knows(self, name: int) -> bool:
        """Tell whether a sequence has a place, or may have one."""
        return name in self.held or self.has_room

    @rule(
        parts=st.lists(st.tuples(names, tokens), min_size=1, max_size=4, unique_by=lambda p: p[0]),
        is_finished=st.booleans(),
    )
    def step(self, parts: list[tuple[int, list[int]]], is_finished: bool) -> None:
        before = {name: self.held.get(name, []) for name, _ in parts}
        asked = [(name, len(before[name]), len(before[name]) + len(new)) for name, new in parts]
        try:
            sources, targets = self.states.assign(asked)
        except PromptError:
            assert len({*self.held, *before}) > NUM_SLOTS // SLOTS_PER_SEQUENCE
            self.note_places(before)
            return
        self.note_places(before)
        assert len({*targets.tolist()}) == len(parts)
        assert not {*targets.tolist()} & {*sources.tolist()}
        read = [self.content.get(source, []) for source in sources.tolist()]
        assert read == [before[name] for name, _ in parts]
        for (name, new), state, target in zip(parts, read, targets.tolist(), strict=True):
            # What an interrupted step leaves behind must harm nobody.
            self.content[target] = state + new if is_finished else [-1]
            self.held[name] = before[name] + new if is_finished else before[name]

    def note_places(self, wanted: dict[int, list[int]]) -> None:
        """Count the sequences that got a place, in their order, before one did not."""
        for name, computed in wanted.items():
            if self.knows(name):
                self.held[name] = computed

    @rule(name=names)
    def reserve(self, name: int) -> None:
        try:
            self.states.reserve(name)
        except PromptError:
            assert not self.knows(name)
        else:
            self.held.setdefault(name, [])

    @precondition(lambda self: self.held)
    @rule(data=st.data(), child=names)
    def fork(self, data: st.DataObject, child: int) -> None:
        parent = data.draw(st.sampled_from(sorted(self.held)))
        computed = self.held[parent]
        try:
            self.states.fork(parent, child, len(computed))
        except PromptError:
            assert not self.knows(child)
        else:
            self.held[child] = list(computed)

    @rule(name=names, length=st.integers(0, 20))
    def truncate(self, name: int, length: int) -> None:
        computed = self.held.get(name, [])[:length]
        is_there = not computed or self.states.slot_of(name, len(computed)) is not None
        assume(is_there)
        self.states.truncate(name, len(computed))
        if name in self.held:
            self.held[name] = computed

    @rule(name=names)
    def free(self, name: int) -> None:
        self.states.free(name)
        self.held.pop(name, None)

    @rule(name=names)
    def keep(self, name: int) -> None:
        computed = self.held.get(name, [])
        slot = self.states.slot_of(name, len(computed))
        if slot is not None:
            self.snapshots.slots[slot] = list(computed)

    @precondition(lambda self: self.snapshots.slots)
    @rule(data=st.data(), name=names)
    def begin_with_snapshot(self, data: st.DataObject, name: int) -> None:
        slot = data.draw(st.sampled_from(sorted(self.snapshots.slots)))
        kept = self.snapshots.slots[slot]
        try:
            self.states.begin(name, slot, len(kept))
        except PromptError:
            assert not self.knows(name)
        else:
            self.held[name] = list(kept)

    @rule(name=names, new=tokens, what=st.sampled_from(["assign", "free"]), at=st.integers(1, 60))
    def interrupt(self, name: int, new: list[int], what: str, at: int) -> None:
        """Ctrl-C at any line; whoever runs the sequence then tries again."""
        start = len(self.held.get(name, []))
        if what == "assign":
            is_known = self.knows(name)
            part = (name, start, start + len(new))
            interrupted(lambda: self.states.assign([part]), at)
            if is_known:
                self.states.reserve(name)
                self.held.setdefault(name, [])
        else:
            interrupted(lambda: self.states.free(name), at)
            self.free(name)

    @invariant()
    def everybody_has_its_state(self) -> None:
        for name, computed in self.held.items():
            slot = self.states.slot_of(name, len(computed))
            assert self.content.get(-1 if slot is None else slot, []) == computed
        assert all(self.content[slot] == kept for slot, kept in self.snapshots.slots.items())

    @invariant()
    def there_is_room_for_every_sequence(self) -> None:
        assert self.states.num_used <= SLOTS_PER_SEQUENCE * len(self.held)
        assert self.states.num_used + self.states.num_unused <= NUM_SLOTS


SharedSlots.TestCase.settings = settings(stateful_step_count=40)
TestSharedSlots = SharedSlots.TestCase
