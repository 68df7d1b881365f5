"""Slots of recurrent state: which one a step reads, which one it writes."""

from collections.abc import Hashable

import numpy as np
import pytest

from powerinfer.errors import PowerInferError, PromptError
from powerinfer.kvcache import KVCache
from powerinfer.kvcache.state_slots import StateSlots
from powerinfer.ops.protocol import KVType
from powerinfer.values import Batch


def cache_with_states(num_slots: int = 6, num_blocks: int = 12) -> KVCache:
    """A cache without layers: only the bookkeeping."""
    return KVCache(
        num_blocks,
        4,
        states=StateSlots(num_slots, 10),
        layers=[],
        kv_type=KVType.F16,
        bytes_per_position=0,
    )


def slots_of(batch: Batch) -> tuple[list[int], list[int]]:
    assert batch.state_sources is not None
    assert batch.state_targets is not None
    assert batch.state_sources.dtype == batch.state_targets.dtype == np.int32
    return batch.state_sources.tolist(), batch.state_targets.tolist()


def step(cache: KVCache, *parts: tuple[str, int, int]) -> tuple[list[int], list[int]]:
    """Compute tokens of sequences: each from a position on, this many."""
    tokens = [(name, [7] * count, start) for name, start, count in parts]
    return slots_of(cache.batch(tokens, [False] * len(parts)))


def test_a_sequence_alternates_between_two_slots() -> None:
    cache = cache_with_states()
    assert step(cache, ("a", 0, 5)) == ([-1], [0])
    assert step(cache, ("a", 5, 1)) == ([0], [1])
    assert step(cache, ("a", 6, 1), ("b", 0, 1)) == ([1, -1], [0, 2])
    # Interrupted, and tried again with another number of tokens.
    assert step(cache, ("a", 6, 1)) == ([1], [0])
    assert step(cache, ("a", 6, 3)) == ([1], [0])
    assert cache.states is not None
    assert cache.states.num_used == 3


def test_models_without_state_have_no_slots() -> None:
    cache = KVCache(12, 4, layers=[], kv_type=KVType.F16, bytes_per_position=0)
    batch = cache.batch([("a", [7], 0)], [True])
    assert batch.state_sources is None
    assert batch.state_targets is None
    cache.hold_state("b", "a", 1)
    assert cache.can_resume("a", 1)


def test_a_fork_reads_what_its_parent_wrote() -> None:
    cache = cache_with_states()
    step(cache, ("a", 0, 8))
    cache.fork("a", "b", 8)
    # Neither may write slot 0, which both read.
    assert step(cache, ("a", 8, 1), ("b", 8, 1)) == ([0, 0], [1, 2])
    assert step(cache, ("a", 9, 1)) == ([1], [3])
    assert step(cache, ("b", 9, 1)) == ([2], [0])


def test_a_state_is_held_for_later_forks() -> None:
    cache = cache_with_states(8)
    step(cache, ("a", 0, 8))
    cache.hold_state("prompt", "a", 8)
    for start in range(8, 12):
        step(cache, ("a", start, 1))
    with pytest.raises(PowerInferError, match=r"state after 8 positions .* not there any more"):
        cache.fork("a", "b", 8)
    cache.fork("a", "b", 8, state_of="prompt")
    assert step(cache, ("b", 8, 1))[0] == [0]


def test_a_step_from_a_position_without_state_is_refused() -> None:
    cache = cache_with_states()
    step(cache, ("a", 0, 4))
    step(cache, ("a", 4, 4))
    assert [length for length in range(10) if cache.can_resume("a", length)] == [0, 4, 8]
    cache.truncate("a", 6)
    assert not cache.can_resume("a", 8)
    with pytest.raises(PowerInferError, match="compute it again from its first token"):
        step(cache, ("a", 6, 1))
    cache.truncate("a", 0)
    assert step(cache, ("a", 0, 1))[0] == [-1]


def test_more_sequences_than_there_is_room_for() -> None:
    cache = cache_with_states(5)
    cache.reserve("a", 4)
    cache.reserve("b", 4)
    blocks = cache.num_available_blocks
    with pytest.raises(PromptError, match="the states of 2 texts are in use"):
        cache.reserve("c", 4)
    with pytest.raises(PromptError, match="2 texts"):
        step(cache, ("c", 0, 1))
    cache.free("c")
    assert cache.num_available_blocks == blocks
    cache.free("a")
    cache.reserve("c", 4)


def test_shrinking_leaves_blocks_but_no_state() -> None:
    cache = cache_with_states(4)
    cache.reserve("a", 40)
    step(cache, ("a", 0, 6))
    cache.shrink("a", 5)
    assert len(cache.blocks_of("a")) == 2
    assert cache.num_available_blocks == 10
    assert cache.states is not None
    assert cache.states.num_used == 0
    cache.reserve("b", 4)
    cache.reserve("c", 4)


class Snapshots:
    """A keeper of every slot that it is told, the oldest first."""

    def __init__(self, states: StateSlots) -> None:
        self.states, self.slots = states, list[int]()
        states.set_keeper(self)

    def forget_states(self, sequence: Hashable, num_positions: int) -> None:
        """Keep all: they are no sequence's."""

    def reclaim_slot(self) -> None:
        self.slots.remove(next(filter(self.states.is_unused, self.slots)))


def test_snapshots_give_way_to_sequences() -> None:
    """Also the one that a sequence itself holds, in place of a slot to write."""
    cache = cache_with_states(2)
    assert cache.states is not None
    snapshots = Snapshots(cache.states)
    step(cache, ("a", 0, 1))
    snapshots.slots = [0]
    assert step(cache, ("a", 1, 1)) == ([0], [1])
    snapshots.slots = [0, 1]
    assert (cache.states.num_used, cache.states.num_unused) == (2, 0)
    assert step(cache, ("a", 2, 1)) == ([1], [0])
    assert snapshots.slots == [1]
    cache.free("a")
    assert (cache.states.num_used, cache.states.num_unused) == (0, 1)
