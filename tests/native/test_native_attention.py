"""Rotation, cache writes and attention against the numpy reference."""

import pytest

from attention_cases import CASES, Case, Options, attend, rope_table
from native_cases import THREADS, make_batch, numbers, reference, same_bits, use_kernels
from powerinfer.errors import ShapeError
from powerinfer.ops.protocol import KVType
from tolerances import assert_close

kinds = pytest.mark.parametrize("is_prompt", [True, False], ids=["prompt", "decode"])


@kinds
@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("kv_type", list(KVType))
def test_agrees_with_the_reference(
    kernels: str, case: Case, kv_type: KVType, *, is_prompt: bool
) -> None:
    if kv_type is KVType.Q8_0 and case[2] % 32:
        with pytest.raises(ShapeError, match="multiple of 32"):
            use_kernels(kernels).new_kv_layers(1, 1, 16, case[1], case[2], kv_type)
        return
    got = attend(use_kernels(kernels), case, kv_type, is_prompt=is_prompt)
    expected = attend(reference(), case, kv_type, is_prompt=is_prompt)
    assert_close(got, expected, "one operation, float")


@pytest.mark.parametrize("is_interleaved", [True, False])
def test_rotates_like_the_reference(kernels: str, is_interleaved: bool) -> None:
    for case in CASES:
        rope = rope_table(case[2], is_interleaved=is_interleaved)
        got = attend(use_kernels(kernels), case, KVType.F16, Options(rope), is_prompt=False)
        expected = attend(reference(), case, KVType.F16, Options(rope), is_prompt=False)
        assert_close(got, expected, "native float")


@kinds
def test_bits_do_not_depend_on_threads(kernels: str, *, is_prompt: bool) -> None:
    for case in CASES:
        results = [
            attend(use_kernels(kernels, n), case, KVType.F16, is_prompt=is_prompt) for n in THREADS
        ]
        assert all(same_bits(result, results[0]) for result in results), case


@kinds
def test_sequences_do_not_see_each_other(kernels: str, *, is_prompt: bool) -> None:
    case: Case = (2, 2, 16, 16, None, (40, 40), 40)
    alone: Case = (2, 2, 16, 16, None, (40,), 40)
    both = attend(use_kernels(kernels), case, KVType.F16, is_prompt=is_prompt)
    one = attend(use_kernels(kernels), alone, KVType.F16, is_prompt=is_prompt)
    # numbers() of another shape begin with the same values, so the first sequence is the same.
    assert same_bits(both[:40], one)


@pytest.mark.parametrize("block", [-1, 4, 2**31 - 1])
def test_refuses_blocks_that_do_not_exist(block: int) -> None:
    ops = use_kernels("portable")
    whole, last = make_batch((40,), 1, 16)
    cache = ops.new_kv_layers(1, 3, 16, 1, 8, KVType.F16)[0]
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
    cache = ops.new_kv_layers(1, 3, 16, 1, 8, KVType.F16)[0]
    whole.positions[7] = position
    q, k, v = (numbers((40, 8), i) for i in range(3))
    with pytest.raises(IndexError, match="position"):
        ops.rope_and_store(q, k, v, cache, whole, rope_table(8, is_interleaved=True))


def test_refuses_heads_that_do_not_fit() -> None:
    ops = use_kernels("portable")
    whole, _ = make_batch((4,), 1, 16)
    cache = ops.new_kv_layers(1, 1, 16, 2, 8, KVType.F16)[0]
    with pytest.raises(ShapeError, match="q has 24 columns"):
        ops.attention(numbers((4, 24), 0), cache, whole, 1.0)
    with pytest.raises(ShapeError, match=r"k is \[4, 8\], must be \[4, 16\]"):
        ops.rope_and_store(
            numbers((4, 16), 0), numbers((4, 8), 0), numbers((4, 8), 0), cache, whole, None
        )
    with pytest.raises(ShapeError, match="turns 16 dimensions"):
        q, k, v = (numbers((4, 16), i) for i in range(3))
        ops.rope_and_store(q, k, v, cache, whole, rope_table(16, is_interleaved=True))
