"""Blocks of the KV cache: who owns them, what happens when they run out."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from powerinfer.errors import PromptError
from powerinfer.gguf import open_gguf
from powerinfer.models import KVCache, load_model
from powerinfer.ops.protocol import KVType
from powerinfer.ops.reference.ops import ReferenceOps
from tiny_models import TINY_MODELS, write_model


def empty_cache(num_blocks: int, block_size: int = 4) -> KVCache:
    """A cache without layers: only the bookkeeping."""
    return KVCache(
        layers=[],
        num_blocks=num_blocks,
        block_size=block_size,
        kv_type=KVType.F16,
        bytes_per_position=0,
        _free=list(range(num_blocks)),
    )


class Bookkeeping(RuleBasedStateMachine):
    """Any order of calls keeps every block free or owned once, and no one's blocks change."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = empty_cache(12)
        self.expected: dict[int, list[int]] = {}

    @rule(sequence=st.integers(0, 3), num_positions=st.integers(0, 60))
    def allocate(self, sequence: int, num_positions: int) -> None:
        before = self.expected.get(sequence, [])
        needed = -(-num_positions // 4)
        if needed - len(before) > self.cache.num_free_blocks:
            with pytest.raises(PromptError, match="KV cache is full"):
                self.cache.allocate(sequence, num_positions)
            return
        blocks = self.cache.allocate(sequence, num_positions).tolist()
        assert blocks[: len(before)] == before
        assert len(blocks) == max(needed, len(before))
        self.expected[sequence] = blocks

    @rule(sequence=st.integers(0, 3), num_positions=st.integers(0, 60))
    def truncate(self, sequence: int, num_positions: int) -> None:
        self.cache.truncate(sequence, num_positions)
        kept = self.expected.get(sequence, [])[: -(-num_positions // 4)]
        self.expected[sequence] = kept

    @rule(sequence=st.integers(0, 3))
    def free(self, sequence: int) -> None:
        self.cache.free(sequence)
        self.expected.pop(sequence, None)

    @invariant()
    def is_sound(self) -> None:
        self.cache.check_integrity()
        owned = sum(map(len, self.expected.values()))
        assert self.cache.num_free_blocks == 12 - owned


TestBookkeeping = Bookkeeping.TestCase


def test_integrity_check_finds_a_lost_block() -> None:
    cache = empty_cache(3)
    cache._free.pop()
    with pytest.raises(Exception, match="lost or shared"):
        cache.check_integrity()


def test_lowest_blocks_first() -> None:
    cache = empty_cache(8)
    cache.allocate("a", 8)
    cache.allocate("b", 4)
    cache.free("a")
    assert cache.allocate("c", 5).tolist() == [0, 1]
    assert cache.can_hold(20)
    assert not cache.can_hold(21)


def test_batch_describes_every_token() -> None:
    cache = empty_cache(8)
    cache.batch([("a", [9, 8, 7], 0)])
    batch = cache.batch([("a", [5], 3), ("b", [1, 2, 3, 4, 6], 0)])
    assert batch.token_ids.tolist() == [5, 1, 2, 3, 4, 6]
    assert batch.positions.tolist() == [3, 0, 1, 2, 3, 4]
    assert batch.sequences.tolist() == [0, 1, 1, 1, 1, 1]
    assert batch.block_tables.tolist() == [[0, -1], [1, 2]]
    assert {array.dtype for array in (batch.token_ids, batch.positions)} == {np.dtype(np.int32)}


def test_a_full_cache_says_what_to_do(tmp_path: Path) -> None:
    model = load_model(
        open_gguf(write_model(tmp_path / "m.gguf", TINY_MODELS["llama"])), ReferenceOps()
    )
    cache = model.new_cache(60)
    assert cache.num_blocks == 1
    with pytest.raises(PromptError, match="larger context"):
        cache.batch([(0, list(range(65)), 0)])
    cache.check_integrity()
