"""Sequences that share KV blocks: each keeps its own keys and values whatever the others do."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any
from zlib import crc32

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from powerinfer.errors import PromptError
from powerinfer.kvcache import KVCache, PrefixTree
from powerinfer.kvcache.state_slots import StateSlots
from powerinfer.ops.backend import KVLayer
from powerinfer.ops.protocol import KVType
from powerinfer.ops.reference.ops import ReferenceKV, ReferenceOps
from powerinfer.values import Batch

BLOCK_SIZE, NUM_BLOCKS = 4, 12

Tokens = list[tuple[int, bool]]

names = st.integers(0, 4)
token_ids = st.lists(st.integers(0, 2), min_size=1, max_size=11)


def small_cache(
    num_blocks: int = NUM_BLOCKS, states: StateSlots | None = None
) -> tuple[KVCache, ReferenceKV]:
    """A cache of one layer whose keys and values are single numbers."""
    ops = ReferenceOps()
    layer = ops.new_kv_layers(1, num_blocks, BLOCK_SIZE, 1, 1, KVType.F16)[0]

    def copy(pairs: object) -> None:
        ops.copy_kv_blocks([layer], pairs)  # type: ignore[arg-type]

    layers = [KVLayer(layer)]
    return KVCache(
        num_blocks,
        BLOCK_SIZE,
        copy,
        states,
        layers=layers,
        kv_type=KVType.F16,
        bytes_per_position=4,
    ), layer


def content(tokens: Tokens) -> list[int]:
    """What a step computes for each: it depends on all before and on what was prompt."""
    return [crc32(repr(tokens[: index + 1]).encode()) % 2000 for index in range(len(tokens))]


def compute(
    cache: KVCache, layer: ReferenceKV, parts: list[tuple[int, Tokens, list[int], bool]]
) -> Batch:
    """One step: of each part its sequence, what it holds, new tokens and their kind."""
    batch = cache.batch(
        [(name, new, len(held)) for name, held, new, _ in parts], [part[3] for part in parts]
    )
    done = [content(held + [(t, mark) for t in new])[len(held) :] for _, held, new, mark in parts]
    blocks = batch.block_tables[batch.sequences, batch.positions // BLOCK_SIZE]
    offsets = batch.positions % BLOCK_SIZE
    layer.keys[blocks, offsets, 0, 0] = np.concatenate(done)
    layer.values[blocks, offsets, 0, 0] = -np.concatenate(done)
    return batch


INTERRUPTED = {"append", "truncate", "insert", "free", "share or reclaim"}


def interrupted(work: Callable[[], object], line: int) -> None:
    """Run something up to some line of the files that count blocks."""
    rest = [line]

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.endswith(
            ("kv_cache.py", "block_counts.py", "prefix_tree.py", "state_slots.py")
        ):
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


class SharedBlocks(RuleBasedStateMachine):
    """Any order of calls, against what every sequence should hold."""

    states: StateSlots | None = None

    def __init__(self) -> None:
        super().__init__()
        self.cache, self.layer = small_cache(states=self.states)
        self.tree = PrefixTree(self.cache)
        self.held: dict[int, Tokens] = {}

    def resumable(self, name: int, length: int = 1 << 20) -> int:
        """Length up to this at which a sequence can go on; for models without state any."""
        most = min(length, len(self.held.get(name, [])))
        return max(each for each in range(most + 1) if self.cache.can_resume(name, each))

    def go_back(self, name: int) -> None:
        """Truncate a sequence to where it can go on."""
        if name in self.held:
            self.truncate(name, self.resumable(name))

    @rule(name=names, new=token_ids, mark=st.booleans())
    def append(self, name: int, new: list[int], mark: bool) -> None:
        self.step([(name, new, mark)])

    @rule(
        pair=st.lists(st.tuples(names, token_ids), min_size=2, max_size=3, unique_by=lambda p: p[0])
    )
    def decode_together(self, pair: list[tuple[int, list[int]]]) -> None:
        self.step([(name, new[:1], False) for name, new in pair])

    def step(self, wanted: list[tuple[int, list[int], bool]]) -> None:
        for name, _, _ in wanted:
            self.go_back(name)
        parts = [(name, self.held.get(name, []), new, mark) for name, new, mark in wanted]
        before = self.cache.num_available_blocks
        try:
            batch = compute(self.cache, self.layer, parts)
        except PromptError:
            # Each may need a copy of a block that it writes into.
            growth = [(len(h) % 4 + len(new) + 3) // 4 for _, h, new, _ in parts]
            assert sum(growth) > before
            # Those before the one without room have their blocks.
            self.held |= {name: held for name, held, _, _ in parts if self.cache.blocks_of(name)}
            return
        for name, held, new, mark in parts:
            self.held[name] = held + [(token, mark) for token in new]
        self.note_states(batch, parts)

    def note_states(self, batch: Batch, parts: list[tuple[int, Tokens, list[int], bool]]) -> None:
        """Check and write what the step reads and writes besides keys and values."""

    @rule(parent=names, child=names, length=st.integers(0, 30))
    def fork(self, parent: int, child: int, length: int) -> None:
        held = self.held.get(parent, [])[: self.resumable(parent, length)]
        if child == parent:
            return
        self.free(child)
        try:
            self.cache.fork(parent, child, len(held))
        except PromptError:
            assert len(held) % 4
            assert not self.cache.num_available_blocks
        else:
            self.held[child] = list(held)

    @rule(name=names, length=st.integers(0, 30))
    def truncate(self, name: int, length: int) -> None:
        length = self.resumable(name, length)
        self.cache.truncate(name, length)
        self.held[name] = self.held.get(name, [])[:length]

    @rule(name=names)
    def free(self, name: int) -> None:
        self.cache.free(name)
        self.held.pop(name, None)

    @rule(name=names, num_positions=st.integers(0, 40))
    def reserve(self, name: int, num_positions: int) -> None:
        before = self.cache.num_available_blocks
        try:
            self.cache.reserve(name, num_positions)
        except PromptError:
            assert self.cache.num_available_blocks == before
        else:
            self.held.setdefault(name, [])

    @rule(name=names, is_over=st.booleans())
    def insert(self, name: int, is_over: bool) -> None:
        tokens = self.held.get(name, [])
        ids, marks = [t for t, _ in tokens], [mark for _, mark in tokens]
        self.tree.insert(name, ids, marks, is_over=is_over)
        found = self.tree.match(ids, marks).num_known
        # A block that others go on after may hold more of it.
        assert found == len(ids) if is_over else found >= len(ids) // 4 * 4

    @rule(
        name=names,
        tokens=st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=30),
        shares_answers=st.booleans(),
        limit=st.none() | st.integers(0, 30),
    )
    def begin_as_found(
        self, name: int, tokens: Tokens, shares_answers: bool, limit: int | None
    ) -> None:
        self.begin(name, tokens, shares_answers, limit)

    @precondition(lambda self: self.held)
    @rule(data=st.data(), name=names, shares_answers=st.booleans())
    def begin_as_another(self, data: st.DataObject, name: int, shares_answers: bool) -> None:
        like = data.draw(st.sampled_from(sorted(self.held)))
        self.begin(name, self.held[like] + [(1, True)] * 3, shares_answers, None)

    def begin(self, name: int, tokens: Tokens, shares_answers: bool, limit: int | None) -> None:
        self.free(name)
        ids, marks = [t for t, _ in tokens], [mark for _, mark in tokens]
        found = self.tree.match(ids, marks, shares_answers=shares_answers, limit=limit)
        assert found.num_positions <= (len(ids) if limit is None else limit)
        assert shares_answers or list(found.is_prompt) == marks[: found.num_positions]
        assert len(found.blocks) == found.num_positions // 4
        assert found.num_known >= found.num_positions
        total = len(ids) + 5
        num_unused = sum(map(self.cache.is_unused, found.blocks))
        needed = self.cache.num_blocks_for(total) - len(found.blocks) + num_unused
        can_run = needed <= self.cache.num_available_blocks
        try:
            self.tree.share(name, found)
        except PromptError:
            assert not can_run
            return
        self.held[name] = list(zip(ids, found.is_prompt, strict=False))
        if can_run:
            self.cache.reserve(name, total)

    @rule(
        name=names, new=token_ids, what=st.sampled_from(sorted(INTERRUPTED)), at=st.integers(1, 90)
    )
    def interrupt(self, name: int, new: list[int], what: str, at: int) -> None:
        """Ctrl-C at any line; whoever runs the sequence then tries again."""
        self.go_back(name)
        tokens = self.held.get(name, [])
        ids, marks = [t for t, _ in tokens], [mark for _, mark in tokens]
        if what == "append":
            self.held[name] = tokens
            part = [(name, new, len(tokens))]
            interrupted(lambda: self.cache.batch(part, [True]), at)
        elif what == "truncate":
            length = self.resumable(name, len(new))
            self.held[name] = tokens[:length]
            interrupted(lambda: self.cache.truncate(name, length), at)
        elif what == "insert":
            interrupted(lambda: self.tree.insert(name, ids, marks), at)
        elif what == "free":
            interrupted(lambda: self.cache.free(name), at)
            self.free(name)
        elif name not in self.held:
            found = self.tree.match(new)
            interrupted(lambda: self.tree.share(name, found), at)
            self.free(name)
        else:
            interrupted(self._reclaim_all, at)

    def _reclaim_all(self) -> None:
        with self.cache.changing():
            self.tree.reclaim(self.cache.num_blocks)

    @rule(num_blocks=st.integers(0, 12))
    def reclaim(self, num_blocks: int) -> None:
        before = self.cache.num_free_blocks, self.cache.num_unused_blocks
        self.tree.reclaim(num_blocks)
        gone = min(num_blocks, before[1])
        assert self.cache.num_free_blocks >= before[0] + gone
        assert self.cache.num_unused_blocks <= before[1] - gone

    @invariant()
    def everybody_holds_what_is_theirs(self) -> None:
        self.cache.check_integrity()
        for name, tokens in self.held.items():
            blocks = self.cache.blocks_of(name)
            positions = np.arange(len(tokens))
            assert len(blocks) >= -(-len(tokens) // 4)
            table = np.asarray(blocks, np.int32)[positions // 4]
            expected = content(tokens)
            assert self.layer.keys[table, positions % 4, 0, 0].tolist() == expected
            assert (-self.layer.values[table, positions % 4, 0, 0]).tolist() == expected

    @invariant()
    def promises_can_be_kept(self) -> None:
        assert self.cache.num_available_blocks >= 0


SharedBlocks.TestCase.settings = settings(stateful_step_count=40)
TestSharedBlocks = SharedBlocks.TestCase


class SharedStates(SharedBlocks):
    """The same for a model with state, whose states the tree keeps beside the blocks."""

    def __init__(self) -> None:
        # Two for each sequence: what none of them needs is there for the tree.
        self.states = StateSlots(10)
        super().__init__()
        self.written: dict[int, Tokens] = {}

    def note_states(self, batch: Batch, parts: list[tuple[int, Tokens, list[int], bool]]) -> None:
        assert batch.state_sources is not None
        assert batch.state_targets is not None
        slots = zip(batch.state_sources.tolist(), batch.state_targets.tolist(), strict=True)
        for (name, held, _, _), (source, target) in zip(parts, slots, strict=True):
            assert self.written.get(source, []) == held
            self.written[target] = self.held[name]

    @rule(name=names)
    def keep_state(self, name: int) -> None:
        self.tree.keep_state(name, len(self.held.get(name, [])))

    @rule(name=names)
    def find_the_kept_state(self, name: int) -> None:
        """Whatever is cached of a sequence, the longest beginning with a state is found."""
        tokens = self.held.get(name, [])
        ids, marks = [t for t, _ in tokens], [mark for _, mark in tokens]
        self.tree.insert(name, ids, marks, is_over=True)
        assert self.states is not None
        alike = [self.written[slot] for slot in self.tree.slots]
        longest = max((len(each) for each in alike if each == tokens[: len(each)]), default=0)
        found = self.tree.match(ids, marks)
        assert found.num_known == len(ids)
        # A state whose own block is not in the tree may wait for it in vain.
        assert found.num_positions <= longest
        if self.is_resumable_at_end(name):
            assert found.num_positions == len(ids)

    def is_resumable_at_end(self, name: int) -> bool:
        slot = self.states and self.states.slot_of(name, len(self.held.get(name, [])))
        return slot is not None and slot in self.tree.slots

    @rule(num_slots=st.integers(1, 3))
    def reclaim_slots(self, num_slots: int) -> None:
        assert self.states is not None
        before = self.states.num_unused
        for _ in range(num_slots):
            self.tree.reclaim_slot()
        assert self.states.num_unused == max(0, before - num_slots)

    @invariant()
    def everybody_has_its_state(self) -> None:
        assert self.states is not None
        for name, tokens in self.held.items():
            slot = self.states.slot_of(name, len(tokens)) if tokens else None
            assert slot is None or self.written[slot] == tokens
        for slot in self.tree.slots:
            tokens = self.written[slot]
            found = self.tree.match([t for t, _ in tokens], [mark for _, mark in tokens])
            assert found.slot is None or self.written[found.slot] == tokens[: found.num_positions]


SharedStates.TestCase.settings = settings(stateful_step_count=40)
TestSharedStates = SharedStates.TestCase
