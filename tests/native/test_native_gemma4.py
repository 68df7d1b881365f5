"""Operations of Gemma 4's layers against the numpy reference, and their bits."""

from dataclasses import replace

import numpy as np
import pytest

from attention_cases import rope_table
from expert_cases import ExpertCase, make_experts
from native_cases import (
    KERNELS,
    THREADS,
    both,
    host_ops,
    make_batch,
    numbers,
    same_bits,
    use_kernels,
)
from powerinfer.errors import ShapeError
from powerinfer.ops.protocol import HeadNorms, KVType
from tolerances import assert_close

ROWS = 9


@pytest.mark.parametrize("columns", [1, 12, 300])
def test_gelu_gate_and_scale(kernels: str, columns: int) -> None:
    results = []
    for ops in both(kernels):
        x, y = numbers((ROWS, columns), 1), numbers((ROWS, columns), 2)
        ops.gelu_gate(x, y)
        ops.scale(x, 0.3)
        results.append(x)
    assert_close(results[0], results[1], "one operation, float")


def test_bits_do_not_depend_on_threads_or_rows(kernels: str) -> None:
    x, y = numbers((40, 256), 1), numbers((40, 256), 2)
    expected = None
    for threads in THREADS:
        ops, got = host_ops(use_kernels(kernels, threads)), x.copy()
        ops.gelu_gate(got, y)
        alone = x[7:8].copy()
        ops.gelu_gate(alone, y[7:8].copy())
        assert same_bits(alone, got[7:8])
        expected = got if expected is None else expected
        assert same_bits(got, expected)


@pytest.mark.parametrize("has_norm", [True, False])
@pytest.mark.parametrize("is_rotated", [True, False])
def test_queries_alone_are_those_of_the_whole_operation(
    kernels: str, has_norm: bool, is_rotated: bool
) -> None:
    """To the bit natively: a layer that shares keys has no other arithmetic."""
    for ops in both(kernels):
        batch, _ = make_batch((ROWS,), 1, 16)
        cache = ops.new_kv_layers(1, 1, 16, 1, 8, KVType.F16)[0]
        rope = rope_table(8, is_interleaved=False) if is_rotated else None
        weight = ops.constant(numbers((8,), 3))
        norms = HeadNorms(weight, weight, 1e-5) if has_norm else None
        q, k = numbers((ROWS, 32), 0), numbers((ROWS, 8), 1)
        alone = q.copy()
        ops.rope_and_store(q, k, k.copy(), cache, batch, rope, norms)
        ops.rotate_queries(alone, 8, batch, rope, weight if has_norm else None, 1e-5)
        assert same_bits(alone, q)


def test_normalized_values_and_keys_that_are_values(kernels: str) -> None:
    """What attention sees; keys are stored after their norm, values from before it."""
    mixed = []
    for ops in both(kernels):
        batch, _ = make_batch((ROWS,), 1, 16)
        rope = rope_table(8, is_interleaved=False)
        q_norm, k_norm = ops.constant(numbers((8,), 3)), ops.constant(numbers((8,), 4))
        ones = ops.constant(np.ones(8, np.float32))
        norms = HeadNorms(q_norm, k_norm, 1e-5, ones)
        results = []
        for shares in (True, False):
            cache = ops.new_kv_layers(1, 1, 16, 2, 8, KVType.F16)[0]
            q, k = numbers((ROWS, 32), 0), numbers((ROWS, 16), 1)
            ops.rope_and_store(q, k, k if shares else k.copy(), cache, batch, rope, norms)
            results.append(ops.attention(q, cache, batch, 1.0))
        assert same_bits(results[0], results[1])
        # Each head of a value has the length sqrt(8); the first token sees itself alone.
        lengths = np.linalg.norm(results[0][0].reshape(4, 8), axis=1)
        np.testing.assert_allclose(lengths, 8**0.5, rtol=1e-2)
        mixed.append(results[0])
    assert_close(mixed[0], mixed[1], "native float")


def test_factors_of_experts(kernels: str) -> None:
    case = ExpertCase(num_used=3)
    found = []
    for ops in both(kernels):
        ffn = make_experts(ops, case)
        assert ffn.router is not None
        factors = numbers((ffn.router.num_experts,), 5)
        x = numbers((ROWS, ops.matrix_shape(ffn.router.linear.matrix)[1]), 7)
        ids, plain = ops.route(x, ffn)
        router = replace(ffn.router, expert_scale=ops.constant(factors))
        scaled_ids, scaled = ops.route(x, ops.ffn_weights(replace(ffn, router=router)))
        np.testing.assert_array_equal(scaled_ids, ids)
        np.testing.assert_allclose(scaled, plain * factors[ids], rtol=1e-6)
        found.append(scaled)
    np.testing.assert_allclose(found[0], found[1], atol=1e-2)


def test_shapes_that_do_not_fit_are_named() -> None:
    ops = use_kernels(KERNELS[0])
    batch, _ = make_batch((ROWS,), 1, 16)
    with pytest.raises(ShapeError, match="must have a multiple of 7"):
        ops.rotate_queries(numbers((ROWS, 32), 0), 7, batch, None, None, 0.0)
    with pytest.raises(ShapeError, match="turns 16 dimensions, a head has 8"):
        table = rope_table(16, is_interleaved=False)
        ops.rotate_queries(numbers((ROWS, 32), 0), 8, batch, table, None, 0.0)
    with pytest.raises(ShapeError):
        ops.gelu_gate(numbers((ROWS, 32), 0), numbers((ROWS, 31), 0))
