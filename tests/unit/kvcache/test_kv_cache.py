"""Blocks of the KV cache: who owns them, what happens when they run out."""

import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from powerinfer.errors import PowerInferError, PromptError, UnsupportedError
from powerinfer.gguf import open_gguf
from powerinfer.kvcache import KVCache
from powerinfer.models import ModelConfig, kv_bytes_per_position, load_model
from powerinfer.ops.backend import as_backend
from powerinfer.ops.protocol import KVType
from powerinfer.ops.reference.ops import ReferenceOps
from powerinfer.values import IntArray
from tiny_models import TINY_MODELS, write_model


def empty_cache(num_blocks: int, block_size: int = 4) -> KVCache:
    """A cache without layers: only the bookkeeping."""
    return KVCache(
        layers=[],
        num_blocks=num_blocks,
        block_size=block_size,
        kv_type=KVType.F16,
        bytes_per_position=0,
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
    cache._counts.free.pop()
    with pytest.raises(PowerInferError, match="lost or counted wrongly"):
        cache.check_integrity()


def test_lowest_blocks_first() -> None:
    cache = empty_cache(8)
    cache.allocate("a", 8)
    cache.allocate("b", 4)
    cache.free("a")
    assert cache.allocate("c", 5).tolist() == [0, 1]
    assert cache.num_available_blocks == cache.num_blocks_for(20)
    assert cache.num_available_blocks < cache.num_blocks_for(21)


def test_batch_describes_every_token() -> None:
    cache = empty_cache(8)
    cache.batch([("a", [9, 8, 7], 0)], [True])
    batch = cache.batch([("a", [5], 3), ("b", [1, 2, 3, 4, 6], 0)], [False, True])
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
        cache.batch([(0, list(range(65)), 0)], [True])
    cache.check_integrity()


class _Sequence:
    """A key that can be watched."""


def test_a_freed_sequence_is_forgotten() -> None:
    cache, sequence = empty_cache(8), _Sequence()
    watched = weakref.ref(sequence)
    cache.allocate(sequence, 9)
    cache.free(sequence)
    del sequence
    assert watched() is None


def test_tables_are_i32_however_far_they_grow() -> None:
    cache = empty_cache(32)
    for num_positions in (1, 16, 20, 33, 100):
        blocks = cache.allocate("a", num_positions)
        assert blocks.dtype == np.int32
        assert blocks.tolist() == list(range(-(-num_positions // 4)))


def test_every_array_of_a_batch_is_i32() -> None:
    batch = empty_cache(8).batch(
        [("a", [5], 0), ("b", np.arange(6, dtype=np.int32), 0)], [False, True]
    )
    arrays = (batch.token_ids, batch.positions, batch.sequences, batch.block_tables)
    assert [array.dtype for array in arrays] == [np.int32] * 4


def test_a_step_that_needs_no_block_takes_none() -> None:
    cache = empty_cache(4)
    cache.allocate("a", 5)
    # Positions 5 to 7 lie in the second block, which is there already.
    assert cache.allocate("a", 8).tolist() == [0, 1]
    assert cache.allocate("a", 3).tolist() == [0, 1]
    assert cache.num_free_blocks == 2


def test_block_tables_are_another_array_only_after_a_change() -> None:
    cache = empty_cache(16)

    def tables(*parts: tuple[str, int]) -> IntArray:
        steps = [(name, [5], position) for name, position in parts]
        found = cache.batch(steps, [False] * len(parts)).block_tables
        for row, (name, _) in zip(found, parts, strict=True):
            assert row[row >= 0].tolist() == cache.blocks_of(name)
        return found

    cache.allocate("a", 5)
    first = tables(("a", 5))
    assert tables(("a", 6)) is first
    assert tables(("a", 7)) is first
    assert tables(("a", 8)) is not first
    both = tables(("a", 9), ("b", 0))
    assert tables(("a", 10), ("b", 1)) is both
    assert tables(("b", 2), ("a", 11)) is not both
    cache.reserve("a", 16)
    tables(("a", 11), ("b", 3))
    # Blocks of the same number that are others than before.
    cache.truncate("a", 8)
    cache.allocate("c", 4)
    tables(("a", 9), ("b", 3))
    # A write to a block that another sequence shares takes a copy.
    cache.fork("b", "d", 4)
    tables(("a", 10), ("b", 3))
    tables(("a", 11), ("b", 3), ("d", 4))
    cache.replace("a", 0, cache.blocks_of("c")[0])
    tables(("a", 11), ("b", 3))
    with pytest.raises(ValueError, match="read-only"):
        first[0, 0] = 1


def test_what_is_free_is_said_in_positions() -> None:
    cache = empty_cache(8)
    cache.allocate("a", 20)
    with pytest.raises(PromptError, match="16 more positions needed, 12 of 32 are free"):
        cache.allocate("b", 13)


class _Layers(ReferenceOps):
    """Keeps what caches were asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[object, ...]] = []

    def new_kv_layers(self, *arguments: Any) -> Any:
        self.asked.append(arguments)
        return super().new_kv_layers(*arguments)


def _config(**changes: Any) -> ModelConfig:
    config = load_model(open_gguf(changes.pop("path")), ReferenceOps()).config
    heads = {key: changes[key] for key in ("head_dim", "num_kv_heads") if key in changes}
    layer = replace(config.attention[0], **heads)
    attention = (layer,) * changes.get("num_layers", config.num_layers)
    return replace(config, attention=attention, **changes)


@pytest.fixture
def model_path(tmp_path: Path) -> Path:
    return write_model(tmp_path / "m.gguf", TINY_MODELS["llama"])


@pytest.mark.parametrize(
    ("num_positions", "num_blocks"), [(0, 1), (1, 1), (16, 1), (17, 2), (32, 2), (40, 3)]
)
def test_room_is_made_in_whole_blocks(
    model_path: Path, num_positions: int, num_blocks: int
) -> None:
    ops, config = _Layers(), _config(path=model_path, num_layers=3, head_dim=32)
    model = replace(load_model(open_gguf(model_path), as_backend(ops)), config=config)
    cache = model.new_cache(num_positions, KVType.Q8_0, block_size=16)
    assert (cache.num_blocks, cache.num_free_blocks) == (num_blocks, num_blocks)
    assert (cache.block_size, cache.kv_type) == (16, KVType.Q8_0)
    # Three layers of two heads of 32.
    assert ops.asked == [(3, num_blocks, 16, 2, 32, KVType.Q8_0)]
    assert len(cache.layers) == 3
    # Keys and values of three layers, two heads each, 32 numbers in 34 bytes.
    assert cache.bytes_per_position == 2 * 3 * 2 * 34


def test_the_usual_cache_is_f16_in_blocks_of_64(model_path: Path) -> None:
    cache = load_model(open_gguf(model_path), ReferenceOps()).new_cache(65)
    assert (cache.block_size, cache.num_blocks, cache.kv_type) == (64, 2, KVType.F16)


def test_a_position_takes_its_keys_and_values_in_all_layers(model_path: Path) -> None:
    config = _config(path=model_path, num_layers=5, num_kv_heads=3, head_dim=64)
    assert kv_bytes_per_position(config, KVType.F16) == 2 * 5 * 3 * 64 * 2
    # Q8_0 stores 32 numbers in 34 bytes.
    assert kv_bytes_per_position(config, KVType.Q8_0) == 2 * 5 * 3 * 68
    with pytest.raises(UnsupportedError, match="multiple of 32; this model's are 40 wide"):
        kv_bytes_per_position(_config(path=model_path, head_dim=40), KVType.Q8_0)
