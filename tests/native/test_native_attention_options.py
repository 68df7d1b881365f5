"""Head norms, sinks and soft caps of attention: against the reference, and the rule of bits."""

import gc
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attention_cases import CASES, PLAIN, Case, Options, Scene, attend, rope_table
from native_cases import (
    KERNELS,
    THREADS,
    host_ops,
    make_batch,
    numbers,
    reference,
    same_bits,
    use_kernels,
)
from powerinfer.errors import ShapeError
from powerinfer.ops.protocol import HeadNorms, KVType, LayerProgram
from powerinfer.values import Batch, FloatArray
from tolerances import assert_close

kinds = pytest.mark.parametrize("is_prompt", [True, False], ids=["prompt", "decode"])
OPTIONS = [
    Options(has_sinks=True),
    Options(soft_cap=2.0),
    Options(has_sinks=True, soft_cap=50.0),
]
options = pytest.mark.parametrize("options", OPTIONS, ids=["sinks", "cap", "both"])


@kinds
@options
@pytest.mark.parametrize("kv_type", list(KVType))
def test_agrees_with_the_reference(
    kernels: str, kv_type: KVType, options: Options, *, is_prompt: bool
) -> None:
    for case in CASES:
        if kv_type is KVType.Q8_0 and case[2] % 32:
            continue
        got, expected, plain = (
            attend(ops, case, kv_type, done, is_prompt=is_prompt)
            for ops, done in (
                (host_ops(use_kernels(kernels)), options),
                (host_ops(reference()), options),
                (host_ops(reference()), PLAIN),
            )
        )
        assert_close(got, expected, "one operation, float")
        # The option does something that the tolerance would not hide.
        assert np.abs(expected - plain).max() > 0.01 * plain.std(), case


@pytest.mark.parametrize("is_rotated", [True, False])
def test_normalises_heads_like_the_reference(kernels: str, is_rotated: bool) -> None:
    for case in CASES:
        rope = rope_table(case[2], is_interleaved=False) if is_rotated else None
        got, expected = (
            attend(ops, case, KVType.F16, Options(rope, has_norms=True), is_prompt=True)
            for ops in (host_ops(use_kernels(kernels)), host_ops(reference()))
        )
        assert_close(got, expected, "native float")


def test_normalises_each_head_by_itself() -> None:
    ops = use_kernels("portable")
    batch, _ = make_batch((3,), 1, 16)
    cache = ops.new_kv_layers(1, 1, 16, 1, 8, KVType.F16)[0]
    q, k, v = numbers((3, 16), 0), numbers((3, 8), 1), numbers((3, 8), 2)
    weight = numbers((8,), 3)
    norms = HeadNorms(ops.constant(weight), ops.constant(weight), 1e-5)
    alone = ops.rms_norm(np.ascontiguousarray(q.reshape(6, 8)), norms.q, 1e-5)
    ops.rope_and_store(q, k, v, cache, batch, None, norms)
    assert same_bits(q.reshape(6, 8), alone)


@kinds
@options
def test_bits_do_not_depend_on_threads(kernels: str, options: Options, *, is_prompt: bool) -> None:
    for case in CASES:
        results = [
            attend(use_kernels(kernels, n), case, KVType.F16, options, is_prompt=is_prompt)
            for n in THREADS
        ]
        assert all(same_bits(result, results[0]) for result in results), case


@given(
    st.sampled_from(KERNELS),
    st.sampled_from([(2, 2), (8, 2), (8, 1)]),
    st.sampled_from([None, 5, 45, 260]),
    st.sampled_from(OPTIONS),
    st.sampled_from(KVType),
    st.integers(0, 2**32 - 1),
)
def test_a_row_does_not_depend_on_its_neighbours(
    kernels: str,
    heads: tuple[int, int],
    window: int | None,
    options: Options,
    kv_type: KVType,
    seed: int,
) -> None:
    random = np.random.default_rng(seed)
    case: Case = (*heads, 32, 16, window, (300, 3, 70), 24)
    scene = Scene(use_kernels(kernels), case, kv_type, options, is_prompt=False)
    count = scene.last.num_tokens
    marks = random.random(count) < 0.7
    whole = scene.run_rows(np.arange(count), marks)
    few = np.sort(random.choice(count, count // 3, replace=False))
    assert same_bits(scene.run_rows(few, marks[few]), np.ascontiguousarray(whole[few]))
    for row in random.choice(count, 5):
        assert same_bits(scene.run_rows([row], marks[[row]]), whole[[row]])


def test_a_sink_of_no_weight_changes_no_bit(kernels: str) -> None:
    for case, is_prompt in product(CASES, (True, False)):
        scene = Scene(use_kernels(kernels), case, KVType.F16, is_prompt=is_prompt)
        without = scene.run(scene.last, scene.q)
        scene.sinks = scene.ops.constant(np.full(case[0], -np.inf, np.float32))
        assert same_bits(scene.run(scene.last, scene.q), without)


def test_damage_is_not_hidden(kernels: str) -> None:
    for done, is_prompt in product(OPTIONS, (True, False)):
        scene = Scene(use_kernels(kernels), CASES[1], KVType.F16, done, is_prompt=is_prompt)
        scene.q[0, 3] = np.nan
        got = scene.run(scene.last, scene.q)
        assert np.isnan(got[0, :32]).all()
        assert np.isfinite(got[0, 32:]).all()
        assert np.isfinite(got[1:]).all()


def test_recorded_steps_keep_what_the_options_need(kernels: str) -> None:
    """The vectors of the step that was recorded are gone when it runs again."""
    ops = use_kernels(kernels)
    scene = Scene(ops, (4, 2, 16, 16, None, (40,), 2), KVType.F16, is_prompt=False)
    rope = rope_table(16, is_interleaved=True)
    given_k, given_v = numbers((2, 32), 8), numbers((2, 32), 9)
    rows = np.arange(2, dtype=np.int32)

    def layers(x: FloatArray, batch: Batch, first: int, last: int) -> FloatArray:
        k = ops.take_rows(given_k, rows)  # rotated in place, in every run anew
        norms = HeadNorms(ops.constant(numbers((16,), 4)), ops.constant(numbers((16,), 5)), 1e-3)
        ops.rope_and_store(x, k, given_v, scene.cache, batch, rope, norms)
        sinks = ops.constant(numbers((4,), 6))
        return ops.attention(x, scene.cache, batch, 0.25, sinks=sinks, soft_cap=3.0)

    program = LayerProgram(1, layers, lambda x: x, key="recorded")
    expected = layers(scene.q.copy(), scene.last, 0, 1)
    for _ in range(3):
        assert same_bits(ops.step(scene.q.copy(), scene.last, program), expected)
        gc.collect()
        damage = [np.full(size, np.nan, np.float32) for size in (4, 16, 32, 64) * 8]
    assert len(ops._records) == 1
    del damage


def test_refuses_vectors_that_do_not_fit() -> None:
    ops = use_kernels("portable")
    batch, _ = make_batch((4,), 1, 16)
    cache = ops.new_kv_layers(1, 1, 16, 1, 8, KVType.F16)[0]
    q, k, v = (numbers((4, 8), i) for i in range(3))
    norms = HeadNorms(ops.constant(numbers((8,), 3)), ops.constant(numbers((4,), 4)), 1e-5)
    with pytest.raises(ShapeError, match="the norm of k has 4 entries, must have 8"):
        ops.rope_and_store(q, k, v, cache, batch, None, norms)
    with pytest.raises(ShapeError, match="sinks has 8 entries, must have 1"):
        ops.attention(q, cache, batch, 1.0, sinks=norms.q)
    with pytest.raises(ValueError, match="soft cap of attention cannot be negative"):
        ops.attention(q, cache, batch, 1.0, soft_cap=-1.0)
