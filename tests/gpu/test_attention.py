"""Rotation, the paged cache and attention on the device, against the numpy reference."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from torch_device import skip_module_without

skip_module_without("torch", "triton")

import torch

from powerinfer.errors import PowerInferError, ShapeError, UnsupportedError
from powerinfer.ops.gpu.cache import query_tiles
from powerinfer.ops.gpu.kernels.blocks import quantized
from powerinfer.ops.gpu.ops import DeviceKV, TorchGPU
from powerinfer.ops.operands import HeadNorms, KVType, RopeTable
from powerinfer.ops.reference.ops import ReferenceKV, ReferenceOps
from powerinfer.values import Batch, FloatArray
from tolerances import assert_close

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Part = tuple[int, int]
"""Position of the first token of a sequence in a step, and how many tokens it has there."""


def numbers(rng: np.random.Generator, *shape: int) -> FloatArray:
    return rng.standard_normal(shape).astype(np.float32)


def decoded(cache: DeviceKV) -> list[FloatArray]:
    """Keys and values as f32[num_blocks, block_size, num_kv_heads, head_dim]."""
    found = []
    for stored, scales in ((cache.keys, cache.key_scales), (cache.values, cache.value_scales)):
        factors = scales.float().repeat_interleave(32, dim=-1) if cache.is_q8 else 1.0
        found.append((stored.float() * factors).cpu().numpy())
    return found


def rope_table(rotary_dim: int, *, is_interleaved: bool, length: int = 1024) -> RopeTable:
    rates = 100.0 ** -np.linspace(0, 1, rotary_dim // 2)
    angles = np.arange(length)[:, None] * rates
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    return RopeTable(cos, sin, is_interleaved)


def softmax_options(
    window: int | None, soft_cap: float | None, *, has_sinks: bool
) -> dict[str, Any]:
    """For a World of four heads: a sink that weighs nothing, up to one that weighs most."""
    sinks = np.linspace(-20, 8, 4).astype(np.float32) if has_sinks else None
    return {"window": window, "soft_cap": soft_cap, "sinks": sinks}


@dataclass
class Heads:
    """Sizes of an attention layer."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


class World:
    """A cache in the reference and on the device, and the same steps done in both."""

    def __init__(
        self,
        heads: Heads,
        lengths: Sequence[int],
        *,
        kv_type: KVType = KVType.F16,
        block_size: int = 4,
        window: int | None = None,
        sinks: FloatArray | None = None,
        soft_cap: float | None = None,
        rope: RopeTable | None = None,
        seed: int = 0,
    ) -> None:
        self.rng = np.random.default_rng(seed)
        self.heads, self.window, self.rope = heads, window, rope
        self.sinks, self.soft_cap = sinks, soft_cap
        self.gpu, self.reference = TorchGPU(DEVICE), ReferenceOps()
        counts = [-(-length // block_size) for length in lengths]
        sizes = (sum(counts) + 2, block_size, heads.num_kv_heads, heads.head_dim)
        self.expected: ReferenceKV = self.reference.new_kv_layers(1, *sizes, kv_type)[0]
        self.cache: DeviceKV
        (self.cache,) = self.gpu.new_kv_layers(1, *sizes, kv_type)
        # Positions that were never written must not matter.
        for array in self.cache.arrays:
            array.fill_(float("nan") if array.dtype.is_floating_point else 77)
        # Blocks in any order; what a sequence has not reached is -1.
        blocks = self.rng.permutation(sizes[0]).astype(np.int32)
        self.tables = np.full((len(lengths), max(counts)), -1, np.int32)
        for row, end, count in zip(self.tables, np.cumsum(counts), counts, strict=True):
            row[:count] = blocks[end - count : end]
        self.starts = [0] * len(lengths)

    def batch(self, lengths: Sequence[int]) -> Batch:
        """The next tokens of each sequence, in any order."""
        positions = [
            np.arange(start, start + length)
            for start, length in zip(self.starts, lengths, strict=True)
        ]
        sequences = np.repeat(np.arange(len(lengths)), lengths)
        order = self.rng.permutation(len(sequences))
        self.starts = [a + b for a, b in zip(self.starts, lengths, strict=True)]
        return Batch(
            np.zeros(len(order), np.int32),
            np.concatenate(positions)[order].astype(np.int32),
            sequences[order].astype(np.int32),
            self.tables,
        )

    def inputs(self, num_tokens: int) -> list[FloatArray]:
        """Random q, k, v."""
        heads = (self.heads.num_heads, self.heads.num_kv_heads, self.heads.num_kv_heads)
        return [numbers(self.rng, num_tokens, count * self.heads.head_dim) for count in heads]

    def run(self, batch: Any, inputs: Sequence[FloatArray]) -> Any:
        """Store and attend on the device."""
        # Parts of one tensor, as a joined product gives them.
        joined = self.gpu.to_device(np.concatenate(inputs, axis=1))
        q, k, v = self.gpu.split_columns(joined, [x.shape[1] for x in inputs])
        self.gpu.rope_and_store(q, k, v, self.cache, batch, self.rope)
        sinks = None if self.sinks is None else self.gpu.to_device(self.sinks)
        placed = q, self.cache, batch, self.heads.head_dim**-0.5, self.window
        return self.gpu.attention(*placed, sinks=sinks, soft_cap=self.soft_cap)

    def store(
        self, inputs: list[FloatArray], batch: Batch, norms: HeadNorms[FloatArray] | None = None
    ) -> list[FloatArray]:
        """Rotate in place and store, in numpy."""
        q, k, v = inputs
        self.reference.rope_and_store(q, k, v, self.expected, batch, self.rope, norms)
        return inputs

    def wanted(self, batch: Batch, inputs: Sequence[FloatArray]) -> FloatArray:
        """The same in numpy."""
        q, _, _ = self.store([x.copy() for x in inputs], batch)
        known = q, self.expected, batch, self.heads.head_dim**-0.5, self.window
        return self.reference.attention(*known, sinks=self.sinks, soft_cap=self.soft_cap)

    def remember(self, lengths: Sequence[int]) -> None:
        """Store tokens in both without kernels, of which interpreted ones take long."""
        batch = self.batch(lengths)
        self.store(self.inputs(batch.num_tokens), batch)
        size = self.cache.block_size
        blocks = batch.block_tables[batch.sequences, batch.positions // size]
        used = blocks, batch.positions % size
        for codes, scales, stored in (
            (self.cache.keys, self.cache.key_scales, self.expected.keys),
            (self.cache.values, self.cache.value_scales, self.expected.values),
        ):
            kept: Any = stored[used]
            if self.cache.is_q8:
                # Blocks of an f16 scale and 32 codes.
                groups = kept.reshape(*kept.shape[:2], -1, 34)
                found = np.ascontiguousarray(groups[..., :2]).view(np.float16)[..., 0]
                scales[used] = torch.from_numpy(found).to(DEVICE)
                kept = np.ascontiguousarray(groups[..., 2:]).view(np.int8)
                kept = kept.reshape(*kept.shape[:2], -1)
            codes[used] = torch.from_numpy(kept).to(DEVICE)

    def check_step(self, lengths: Sequence[int]) -> None:
        """Do one step in both and compare."""
        batch = self.batch(lengths)
        inputs = self.inputs(batch.num_tokens)
        got = self.gpu.to_host(self.run(batch, inputs))
        # A rotated key may round to the next f16.
        is_rounded = self.cache.is_q8 or self.rope is not None
        row = "one operation, f16" if is_rounded else "one operation, float"
        assert_close(got, self.wanted(batch, inputs), row)


class TestRopeAndStore:
    def check(
        self,
        heads: Heads,
        rope: RopeTable | None,
        kv_type: KVType,
        norms: HeadNorms[FloatArray] | None = None,
    ) -> None:
        world = World(heads, (9, 3), kv_type=kv_type, rope=rope)
        batch = world.batch((9, 3))
        arrays = world.inputs(batch.num_tokens)
        q, k, v = (world.gpu.to_device(x) for x in arrays)
        placed = None if norms is None else norms.map(world.gpu.to_device)
        world.gpu.rope_and_store(q, k, v, world.cache, batch, rope, placed)
        rotated = world.store([x.copy() for x in arrays], batch, norms)
        for got, turned in zip((q, k, v), rotated, strict=True):
            assert_close(world.gpu.to_host(got), turned, "one operation, float")
        blocks = batch.block_tables[batch.sequences, batch.positions // 4]
        used = (blocks, batch.positions % 4)
        stored = (world.expected.keys, world.expected.values)
        for kept, expected in zip(decoded(world.cache), stored, strict=True):
            wanted = world.expected.decode(expected[used])
            # One unit of the last place: half precision, or a code of 127.
            limit = 1 / 127 if kv_type is KVType.Q8_0 else 2.0**-10
            assert np.abs(kept[used] - wanted).max() <= limit * np.abs(wanted).max()
            assert np.mean(kept[used] != wanted) < 0.02

    def test_pairs_widths_and_types(self) -> None:
        for head_dim, rotary_dim in ((8, 8), (32, 16), (64, 64), (80, 20), (96, 96), (128, 128)):
            for is_interleaved in (False, True):
                for kv_type in KVType:
                    if kv_type is KVType.Q8_0 and head_dim % 32:
                        continue
                    table = rope_table(rotary_dim, is_interleaved=is_interleaved)
                    self.check(Heads(2, 1, head_dim), table, kv_type)

    def test_head_norms(self) -> None:
        rng = np.random.default_rng(3)
        for head_dim, rotary_dim in ((32, 16), (64, 64), (80, 20), (32, 0)):
            norms = HeadNorms(numbers(rng, head_dim), numbers(rng, head_dim), 0.1)
            for is_interleaved in (False, True):
                table = rope_table(rotary_dim, is_interleaved=is_interleaved)
                self.check(Heads(6, 2, head_dim), table, KVType.F16, norms)
        norms = HeadNorms(numbers(rng, 64), numbers(rng, 64), 1e-6)
        for rope in (rope_table(64, is_interleaved=False), None):
            self.check(Heads(2, 1, 64), rope, KVType.Q8_0, norms)

    @pytest.mark.parametrize("kv_type", KVType)
    def test_without_rotation(self, kv_type: KVType) -> None:
        self.check(Heads(2, 2, 32), None, kv_type)

    def test_zeros_stay_zeros_in_q8_0(self) -> None:
        world = World(Heads(1, 1, 32), (1,), kv_type=KVType.Q8_0)
        batch = world.batch((1,))
        zeros = [np.zeros_like(x) for x in world.inputs(1)]
        np.testing.assert_array_equal(world.gpu.to_host(world.run(batch, zeros)), 0)

    def test_missing_block(self) -> None:
        world = World(Heads(1, 1, 8), (4,))
        batch = world.batch((5,))
        with pytest.raises(PowerInferError, match="no KV block"):
            world.run(batch, world.inputs(5))

    def test_q8_0_needs_whole_blocks(self) -> None:
        with pytest.raises(UnsupportedError, match="multiple of 32"):
            TorchGPU(DEVICE).new_kv_layers(1, 1, 4, 1, 80, KVType.Q8_0)


class TestDecode:
    def test_heads_and_widths(self) -> None:
        cases = [(1, 1, 8), (4, 2, 16), (8, 4, 32), (3, 3, 64), (20, 1, 64), (2, 1, 80), (4, 4, 96)]
        for sizes in (*cases, (8, 2, 128)):
            world = World(Heads(*sizes), (70,))
            world.remember((69,))
            world.check_step((1,))

    @pytest.mark.parametrize("sizes", ((4, 2, 32), (2, 2, 96), (4, 1, 128)))
    def test_q8_0(self, sizes: tuple[int, int, int]) -> None:
        table = rope_table(32, is_interleaved=False)
        world = World(Heads(*sizes), (40, 7), kv_type=KVType.Q8_0, rope=table)
        world.remember((39, 6))
        world.check_step((1, 1))

    def test_several_sequences(self) -> None:
        table = rope_table(16, is_interleaved=True)
        world = World(Heads(4, 2, 16), (3, 40, 1, 130), rope=table)
        world.remember((2, 30, 0, 100))
        world.check_step((1, 4, 1, 2))
        world.check_step((0, 1, 0, 1))

    @pytest.mark.parametrize(
        ("heads", "tokens", "is_left"),
        [((8, 4, 32), 1, True), ((2, 1, 64), 2, True), ((2, 1, 64), 3, False),
         ((1, 1, 32), 1, False), ((4, 2, 16), 1, False), ((8, 4, 16), 1, False)],
    )  # fmt: skip
    def test_int8_blocks_are_those_of_the_result(
        self, heads: tuple[int, int, int], tokens: int, is_left: bool
    ) -> None:
        world = World(Heads(*heads), (9,))
        world.gpu.has_packed = True
        world.remember((9 - tokens,))
        batch = world.batch((tokens,))
        mixed = world.run(batch, world.inputs(tokens))
        assert (quantized(mixed) is quantized(mixed)) == is_left
        assert torch.equal(quantized(mixed), quantized(mixed.clone()))

    def test_many_sequences(self) -> None:
        world = World(Heads(2, 1, 16), (5,) * 11)
        world.remember((4,) * 11)
        world.check_step((1,) * 11)

    @pytest.mark.parametrize("window", (1, 3, 64, 1000))
    @pytest.mark.parametrize("kv_type", KVType)
    def test_window(self, window: int, kv_type: KVType) -> None:
        world = World(Heads(2, 1, 32), (110, 3), window=window, kv_type=kv_type)
        world.remember((108, 2))
        world.check_step((1, 1))
        world.check_step((1, 0))

    @pytest.mark.parametrize("length", (511, 512, 700))
    def test_long_sequence_over_all_splits(self, length: int) -> None:
        world = World(Heads(2, 1, 16), (length + 1,), block_size=16)
        world.remember((length,))
        world.check_step((1,))

    @pytest.mark.parametrize("window", (None, 40))
    @pytest.mark.parametrize("soft_cap", (None, 2.0, 50.0))
    @pytest.mark.parametrize("sinks", (False, True))
    def test_sinks_and_soft_caps(
        self, window: int | None, soft_cap: float | None, sinks: bool
    ) -> None:
        options = softmax_options(window, soft_cap, has_sinks=sinks)
        for kv_type in KVType:
            world = World(Heads(4, 2, 32), (110, 3), kv_type=kv_type, **options)
            world.remember((108, 2))
            world.check_step((1, 1))
            world.check_step((1, 0))

    def test_sizes_beyond_f16(self) -> None:
        world = World(Heads(2, 1, 16), (20,))
        world.remember((19,))
        batch = world.batch((1,))
        q, k, v = world.inputs(1)
        expected = world.wanted(batch, (q, k, v))
        large, keys, values = (world.gpu.to_device(x) for x in (q * np.float32(1e6), k, v))
        world.gpu.rope_and_store(large, keys, values, world.cache, batch, None)
        got = world.gpu.attention(large, world.cache, batch, 16**-0.5 * 1e-6)
        assert_close(world.gpu.to_host(got), expected, "one operation, float")

    @pytest.mark.parametrize("bad", (np.nan, np.inf))
    @pytest.mark.parametrize("kv_type", KVType)
    def test_damage_is_not_hidden(self, bad: float, kv_type: KVType) -> None:
        world = World(Heads(2, 1, 32), (6, 6), kv_type=kv_type)
        batch = world.batch((5, 5))
        q, k, v = world.inputs(10)
        v[batch.sequences == 1] = bad
        got = world.gpu.to_host(world.run(batch, (q, k, v)))
        assert np.isfinite(got[batch.sequences == 0]).all()
        assert not np.isfinite(got[batch.sequences == 1]).any()


class TestPrefill:
    def test_heads_and_widths(self) -> None:
        cases = ((1, 1, 8), (4, 2, 16), (8, 4, 32), (2, 1, 80), (2, 2, 96), (2, 1, 128))
        for sizes in cases:
            # Interpreted, a rotation takes longer than attention; other tests turn other widths.
            table = rope_table(8, is_interleaved=True) if sizes == (4, 2, 16) else None
            world = World(Heads(*sizes), (67,), rope=table)
            world.check_step((67,))

    @pytest.mark.parametrize("kv_type", KVType)
    def test_wide_heads_whose_last_tiles_are_half_empty(self, kv_type: KVType) -> None:
        world = World(Heads(2, 1, 192), (67, 5), kv_type=kv_type)
        world.check_step((67, 5))

    def test_in_pieces_with_history_then_decode(self) -> None:
        table = rope_table(16, is_interleaved=False)
        for kv_type in KVType:
            lengths = (80, 10, 12)
            world = World(Heads(4, 2, 32), lengths, rope=table, kv_type=kv_type)
            world.check_step((67, 5, 0))
            world.check_step((9, 1, 9))
            world.check_step((1, 1, 1))

    @pytest.mark.parametrize("window", (1, 5, 64, 100))
    def test_window(self, window: int) -> None:
        world = World(Heads(2, 1, 16), (110, 20), window=window)
        world.check_step((7, 3))
        world.remember((33, 2))
        world.check_step((67, 5))

    @pytest.mark.parametrize("window", (None, 40))
    @pytest.mark.parametrize("soft_cap", (None, 2.0, 50.0))
    @pytest.mark.parametrize("sinks", (False, True))
    def test_sinks_and_soft_caps(
        self, window: int | None, soft_cap: float | None, sinks: bool
    ) -> None:
        options = softmax_options(window, soft_cap, has_sinks=sinks)
        world = World(Heads(4, 2, 32), (75, 5), **options)
        world.check_step((7, 3))
        world.check_step((67, 2))

    def test_tiles_hold_every_token_once(self) -> None:
        world = World(Heads(1, 1, 8), (130, 1, 64))
        batch = world.batch((130, 1, 64))
        tiles = query_tiles(batch)
        used = tiles[tiles >= 0]
        np.testing.assert_array_equal(np.sort(used), np.arange(195))
        for tile in tiles:
            rows = tile[tile >= 0]
            assert len(set(batch.sequences[rows])) == 1
            assert (np.diff(batch.positions[rows]) > 0).all()


class TestRecords:
    """What a graph needs: the same memory, other numbers."""

    def test_filled_again(self) -> None:
        world = World(Heads(4, 2, 16), (60, 5), rope=rope_table(16, is_interleaved=True))
        world.remember((50, 1))
        static = None
        for _ in range(4):
            batch = world.batch((1, 1))
            inputs = world.inputs(2)
            if static is None:
                static = world.gpu.static_batch(batch)
            static.fill(batch)
            static.send()
            got = world.gpu.to_host(world.run(static, inputs))
            assert_close(got, world.wanted(batch, inputs), "one operation, f16")
            # An eager step runs the same launches.
            again = world.gpu.to_host(world.run(batch, inputs))
            np.testing.assert_array_equal(got, again)

    def test_other_sizes_do_not_fit(self) -> None:
        world = World(Heads(1, 1, 8), (8, 8))
        static = world.gpu.static_batch(world.batch((1, 1)))
        with pytest.raises(ShapeError, match="does not fit"):
            static.fill(world.batch((2, 1)))

    def test_missing_block_is_seen_before_a_replay(self) -> None:
        world = World(Heads(1, 1, 8), (4,))
        batch = world.batch((4,))
        static = world.gpu.static_batch(batch)
        static.send()
        world.run(static, world.inputs(4))
        with pytest.raises(PowerInferError, match="no KV block"):
            static.fill(world.batch((4,)))

    def test_every_input_is_sent_and_the_rest_of_the_tables_is_cleared(self) -> None:
        gpu = TorchGPU(DEVICE)
        zeros = np.zeros(2, np.int32)
        wide = Batch(zeros, zeros, zeros[:2], np.full((2, 5), 9, np.int32))
        static = gpu.static_batch(wide, 6)
        random = np.random.default_rng(0)
        narrow = random.integers(0, 9, (2, 3), np.int32)
        for tables in (narrow, narrow, np.flip(narrow, 0), np.where(narrow > 4, -1, narrow)):
            positions, sequences = random.integers(0, 9, (2, 2), np.int32)
            x = random.standard_normal((2, 6)).astype(np.float32)
            static.fill(Batch(zeros, positions, sequences, tables), x)
            static.send()
            found = [gpu.to_host(part) for part in (static.x, *static.arrays)]
            known = np.pad(np.maximum(tables, 0), ((0, 0), (0, 2)))
            for one, expected in zip(found, (x, positions, sequences, known), strict=True):
                np.testing.assert_array_equal(one, expected)

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
    def test_replayed_graph_equals_eager(self) -> None:
        table = rope_table(64, is_interleaved=True)
        world = World(Heads(8, 2, 64), (300, 40), block_size=16, rope=table)
        world.remember((200, 1))
        batch = world.batch((1, 1))
        inputs = world.inputs(2)
        static = world.gpu.static_batch(batch)
        held = world.gpu.to_device(np.concatenate(inputs, axis=1))
        # The device's first step stores them too.
        world.store(inputs, batch)

        def step() -> Any:
            static.send()
            q, k, v = world.gpu.split_columns(held.clone(), [512, 128, 128])
            world.gpu.rope_and_store(q, k, v, world.cache, static, table)
            return world.gpu.attention(q, world.cache, static, 0.125)

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=side):
                out = step()
            for _ in range(30):
                batch = world.batch((1, 1))
                inputs = world.inputs(2)
                static.fill(batch)
                held.copy_(torch.from_numpy(np.concatenate(inputs, axis=1)))
                graph.replay()
                got = world.gpu.to_host(out)
                np.testing.assert_array_equal(got, world.gpu.to_host(step()))
                assert_close(got, world.wanted(batch, inputs), "one operation, f16")
