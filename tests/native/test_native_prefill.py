"""Blocks over many tokens that compute only the neurons that fire for each token."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from native_cases import (
    KERNELS,
    THREADS,
    both,
    given_rows,
    make_ffn,
    numbers,
    same_bits,
    use_kernels,
    vector_tensor,
)
from powerinfer.ops.protocol import FFN, ActiveIds, Linear, MatrixT, VectorT, WeightLoader
from powerinfer.values import Activation, ActivationKind
from tolerances import assert_close

HIDDEN, NEURONS = 256, 700
TABLES = st.sampled_from(KERNELS)
KINDS = [ActivationKind.RELU, ActivationKind.DRELU, ActivationKind.FATRELU, ActivationKind.RELU2]


def planted_ffn(
    ops: WeightLoader[MatrixT, VectorT],
    kind: ActivationKind,
    *,
    format_name: str = "f32",
    is_gated: bool = True,
    is_down_transposed: bool = True,
    is_exact_sparse: bool = True,
) -> FFN[MatrixT, VectorT]:
    """A block in which most neurons fire for few tokens, some for most and some for none."""
    ffn = make_ffn(
        ops,
        Activation(kind, 0.3 if kind is ActivationKind.FATRELU else 0.0),
        (HIDDEN, NEURONS),
        format_name=format_name,
        is_gated=is_gated,
        is_down_transposed=is_down_transposed,
        is_exact_sparse=is_exact_sparse,
    )
    deviations = np.random.default_rng(7).choice([1.0, -1.5, -2.0, -9.0], NEURONS)
    # Normal weights and inputs: a product's deviation is the root of the number of columns.
    bias = (deviations * np.sqrt(HIDDEN)).astype(np.float32)
    deciding = Linear(
        (ffn.gate if ffn.gate is not None else ffn.up).matrix, ops.vector(vector_tensor(bias))
    )
    planted = replace(ffn, gate=deciding) if is_gated else replace(ffn, up=deciding)
    return ops.ffn_weights(planted)


def random_lists(num_tokens: int, seed: int) -> ActiveIds:
    random = np.random.default_rng(seed)
    densities = random.choice([0.0, 0.05, 0.5, 1.0], num_tokens)
    return ActiveIds.of_mask(random.random((num_tokens, NEURONS)) < densities[:, None])


@given(
    kernels=TABLES,
    seed=st.integers(0, 2**32 - 1),
    num_tokens=st.integers(24, 70),
    kind=st.sampled_from(KINDS),
    is_gated=st.booleans(),
    is_down_transposed=st.booleans(),
)
def test_skipping_equals_the_dense_block(
    kernels: str,
    seed: int,
    num_tokens: int,
    kind: ActivationKind,
    is_gated: bool,
    is_down_transposed: bool,
) -> None:
    ops = use_kernels(kernels)
    x = numbers((num_tokens, HIDDEN), seed)
    results = [
        ops.ffn(
            x,
            planted_ffn(
                ops,
                kind,
                is_gated=is_gated,
                is_down_transposed=is_down_transposed,
                is_exact_sparse=is_exact_sparse,
            ),
            is_prompt=given_rows(num_tokens),
        )
        for is_exact_sparse in (True, False)
    ]
    assert_close(results[0], results[1], "one operation, float")


@given(
    kernels=TABLES,
    seed=st.integers(0, 2**32 - 1),
    num_tokens=st.integers(24, 70),
    kind=st.sampled_from([*KINDS, ActivationKind.SILU]),
)
def test_listed_neurons_agree_with_the_reference(
    kernels: str, seed: int, num_tokens: int, kind: ActivationKind
) -> None:
    x, active = numbers((num_tokens, HIDDEN), seed), random_lists(num_tokens, seed)
    native, oracle = both(kernels)
    is_exact_sparse = kind is not ActivationKind.SILU
    results = [
        ops.ffn_active(
            x,
            planted_ffn(ops, kind, is_exact_sparse=is_exact_sparse),
            active,
            given_rows(num_tokens),
        )
        for ops in (native, oracle)
    ]
    assert_close(results[0], results[1], "one operation, float")
    assert native.counters.predicted == len(active.ids)


@pytest.mark.parametrize("format_name", ["f16", "q4_0", "q8_0", "q4_k", "q5_k", "q6_k", "mxfp4"])
def test_formats_agree_with_the_reference(kernels: str, format_name: str) -> None:
    x = numbers((150, HIDDEN), 1)
    results = [
        ops.ffn(
            x,
            planted_ffn(ops, ActivationKind.DRELU, format_name=format_name),
            is_prompt=given_rows(150),
        )
        for ops in both(kernels)
    ]
    kind = "float" if format_name == "f16" else "quantized"
    assert_close(results[0], results[1], f"one operation, {kind}")


def test_threads_do_not_change_bits(kernels: str) -> None:
    x, active = numbers((90, HIDDEN), 1), random_lists(90, 2)
    exact, listed = [], []
    for threads in THREADS:
        ops = use_kernels(kernels, threads)
        ffn = planted_ffn(ops, ActivationKind.RELU, format_name="f16")
        exact.append(ops.ffn(x, ffn, is_prompt=given_rows(90)))
        listed.append(ops.ffn_active(x, ffn, active, given_rows(90)))
    assert all(same_bits(result, exact[0]) for result in exact)
    assert all(same_bits(result, listed[0]) for result in listed)


def test_neurons_that_never_fire_are_not_read() -> None:
    ops = use_kernels("portable")
    x = numbers((64, HIDDEN), 1)
    read = []
    for is_exact_sparse in (True, False):
        before = ops.counters.bytes_read
        ffn = planted_ffn(ops, ActivationKind.RELU, is_exact_sparse=is_exact_sparse)
        ops.ffn(x, ffn, is_prompt=given_rows(64))
        read.append(ops.counters.bytes_read - before)
    # A quarter of the neurons is planted never to fire; gate is read whole.
    assert read[0] < read[1] * (1 / 3 + 2 / 3 * 0.85)
