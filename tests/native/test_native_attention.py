"""Rotation, cache writes and attention against the numpy reference."""

from dataclasses import replace

import numpy as np
import pytest

from native_cases import (
    THREADS,
    given_rows,
    host_ops,
    make_batch,
    numbers,
    reference,
    same_bits,
    use_kernels,
)
from powerinfer.errors import ShapeError
from powerinfer.ops.protocol import HeadNorms, KVType, Ops, RopeTable
from powerinfer.ops.type_parameters import (
    KVLayerT,
    MatrixT,
    PreparedFFNT,
    PreparedPredictorT,
    VectorT,
)
from powerinfer.values import Batch, FloatArray
from tolerances import assert_close

kinds = pytest.mark.parametrize("is_prompt", [True, False], ids=["prompt", "decode"])
# Heads, KV heads, head_dim, block size, window, sequence lengths, and the tokens of each that ask.
Case = tuple[int, int, int, int, int | None, tuple[int, ...], int]
CASES: list[Case] = [
    (4, 2, 16, 16, None, (1, 37, 700), 1),
    (8, 1, 32, 64, None, (300, 5), 9),
    (6, 6, 13, 7, None, (90,), 90),
    (40, 1, 8, 16, None, (33,), 20),
    (4, 4, 64, 16, 5, (300,), 40),
    (2, 1, 32, 16, 258, (600,), 3),
]


def rope_table(head_dim: int, *, is_interleaved: bool) -> RopeTable:
    """Angles for 1024 positions; odd head sizes leave the last dimension alone."""
    half = head_dim // 2
    angles = np.arange(1024)[:, None] * 10000.0 ** (-np.arange(half) / max(1, half))
    return RopeTable(
        np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32), is_interleaved
    )


def attend(
    ops: Ops[FloatArray, MatrixT, VectorT, KVLayerT, PreparedFFNT, PreparedPredictorT],
    case: Case,
    kv_type: KVType,
    rope: RopeTable | None,
    *,
    is_prompt: bool,
    has_norms: bool = False,
) -> FloatArray:
    """Store all positions of all sequences, then attend with the last tokens of each.

    As prompt, those of a sequence share tiles.
    """
    num_heads, num_kv_heads, head_dim, block_size, window, lengths, num_new = case
    whole, last = make_batch(lengths, num_new, block_size)
    sizes = whole.block_tables.size, block_size, num_kv_heads, head_dim
    if is_prompt:
        whole, last = (replace(b, is_prompt=given_rows(b.num_tokens)) for b in (whole, last))
    (cache,) = ops.new_kv_layers(1, *sizes, kv_type)
    k = numbers((whole.num_tokens, num_kv_heads * head_dim), 1)
    v = numbers((whole.num_tokens, num_kv_heads * head_dim), 2)
    q = numbers((whole.num_tokens, num_heads * head_dim), 3)
    norms = None
    if has_norms:
        q_norm, k_norm = (ops.constant(numbers((head_dim,), seed)) for seed in (4, 5))
        norms = HeadNorms(q_norm, k_norm, 1e-3)
    ops.rope_and_store(q, k, v, cache, whole, rope, norms)
    return ops.attention(
        np.ascontiguousarray(q[_rows(whole, last)]), cache, last, head_dim**-0.5, window
    )


def _rows(whole: Batch, last: Batch) -> list[int]:
    places = {
        (int(s), int(p)): i
        for i, (s, p) in enumerate(zip(whole.sequences, whole.positions, strict=True))
    }
    return [places[int(s), int(p)] for s, p in zip(last.sequences, last.positions, strict=True)]


@kinds
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("kv_type", list(KVType))
def test_agrees_with_the_reference(
    kernels: str, case: Case, kv_type: KVType, *, is_prompt: bool
) -> None:
    if kv_type is KVType.Q8_0 and case[2] % 32:
        with pytest.raises(ShapeError, match="multiple of 32"):
            use_kernels(kernels).new_kv_layer(1, 16, case[1], case[2], kv_type)
        return
    got = attend(use_kernels(kernels), case, kv_type, None, is_prompt=is_prompt)
    expected = attend(reference(), case, kv_type, None, is_prompt=is_prompt)
    assert_close(got, expected, "one operation, float")


@pytest.mark.parametrize("is_interleaved", [True, False])
def test_rotates_like_the_reference(kernels: str, is_interleaved: bool) -> None:
    for case in CASES:
        rope = rope_table(case[2], is_interleaved=is_interleaved)
        got = attend(use_kernels(kernels), case, KVType.F16, rope, is_prompt=False)
        expected = attend(reference(), case, KVType.F16, rope, is_prompt=False)
        assert_close(got, expected, "native float")


@pytest.mark.parametrize("is_rotated", [True, False])
def test_normalises_heads_like_the_reference(kernels: str, is_rotated: bool) -> None:
    for case in CASES:
        rope = rope_table(case[2], is_interleaved=False) if is_rotated else None
        got, expected = (
            attend(ops, case, KVType.F16, rope, is_prompt=True, has_norms=True)
            for ops in (host_ops(use_kernels(kernels)), host_ops(reference()))
        )
        assert_close(got, expected, "native float")


def test_normalises_each_head_by_itself() -> None:
    ops = use_kernels("portable")
    batch, _ = make_batch((3,), 1, 16)
    cache = ops.new_kv_layer(1, 16, 1, 8, KVType.F16)
    q, k, v = numbers((3, 16), 0), numbers((3, 8), 1), numbers((3, 8), 2)
    weight = numbers((8,), 3)
    norms = HeadNorms(ops.constant(weight), ops.constant(weight), 1e-5)
    alone = ops.rms_norm(np.ascontiguousarray(q.reshape(6, 8)), norms.q, 1e-5)
    ops.rope_and_store(q, k, v, cache, batch, None, norms)
    assert same_bits(q.reshape(6, 8), alone)


@kinds
def test_bits_do_not_depend_on_threads(kernels: str, *, is_prompt: bool) -> None:
    for case in CASES:
        results = [
            attend(use_kernels(kernels, n), case, KVType.F16, None, is_prompt=is_prompt)
            for n in THREADS
        ]
        assert all(same_bits(result, results[0]) for result in results), case


@kinds
def test_sequences_do_not_see_each_other(kernels: str, *, is_prompt: bool) -> None:
    case: Case = (2, 2, 16, 16, None, (40, 40), 40)
    alone: Case = (2, 2, 16, 16, None, (40,), 40)
    both = attend(use_kernels(kernels), case, KVType.F16, None, is_prompt=is_prompt)
    one = attend(use_kernels(kernels), alone, KVType.F16, None, is_prompt=is_prompt)
    # numbers() of another shape begin with the same values, so the first sequence is the same.
    assert same_bits(both[:40], one)


@pytest.mark.parametrize("block", [-1, 4, 2**31 - 1])
def test_refuses_blocks_that_do_not_exist(block: int) -> None:
    ops = use_kernels("portable")
    whole, last = make_batch((40,), 1, 16)
    cache = ops.new_kv_layer(3, 16, 1, 8, KVType.F16)
    q, k, v = (numbers((40, 8), i) for i in range(3))
    ops.rope_and_store(q, k, v, cache, whole, None)
    last.block_tables[0, 1] = block
    with pytest.raises(IndexError, match="block"):
        ops.attention(numbers((1, 8), 0), cache, last, 1.0)
    with pytest.raises(IndexError, match="block"):
        ops.rope_and_store(q, k, v, cache, whole, None)


@pytest.mark.parametrize("position", [-1, 48, 1024, 2**31 - 1])
def test_refuses_positions_outside(position: int) -> None:
    ops = use_kernels("portable")
    whole, _ = make_batch((40,), 1, 16)
    cache = ops.new_kv_layer(3, 16, 1, 8, KVType.F16)
    whole.positions[7] = position
    q, k, v = (numbers((40, 8), i) for i in range(3))
    with pytest.raises(IndexError, match="position"):
        ops.rope_and_store(q, k, v, cache, whole, rope_table(8, is_interleaved=True))


def test_refuses_norms_that_do_not_fit() -> None:
    ops = use_kernels("portable")
    batch, _ = make_batch((4,), 1, 16)
    cache = ops.new_kv_layer(1, 16, 1, 8, KVType.F16)
    q, k, v = (numbers((4, 8), i) for i in range(3))
    norms = HeadNorms(ops.constant(numbers((8,), 3)), ops.constant(numbers((4,), 4)), 1e-5)
    with pytest.raises(ShapeError, match="the norm of k has 4 entries, must have 8"):
        ops.rope_and_store(q, k, v, cache, batch, None, norms)


def test_refuses_heads_that_do_not_fit() -> None:
    ops = use_kernels("portable")
    whole, _ = make_batch((4,), 1, 16)
    cache = ops.new_kv_layer(1, 16, 2, 8, KVType.F16)
    with pytest.raises(ShapeError, match="q has 24 columns"):
        ops.attention(numbers((4, 24), 0), cache, whole, 1.0)
    with pytest.raises(ShapeError, match=r"k is \[4, 8\], must be \[4, 16\]"):
        ops.rope_and_store(
            numbers((4, 16), 0), numbers((4, 8), 0), numbers((4, 8), 0), cache, whole, None
        )
    with pytest.raises(ShapeError, match="turns 16 dimensions"):
        q, k, v = (numbers((4, 16), i) for i in range(3))
        ops.rope_and_store(q, k, v, cache, whole, rope_table(16, is_interleaved=True))
