"""Feed-forward blocks against the numpy reference, dense and exact sparse."""

import numpy as np
import pytest

from native_cases import (
    FORMATS,
    THREADS,
    both,
    given_rows,
    make_ffn,
    numbers,
    rounds_to_bf16,
    same_bits,
    use_kernels,
)
from powerinfer.errors import ShapeError, UnsupportedError
from powerinfer.values import Activation, ActivationKind
from tolerances import assert_close

ACTIVATIONS = [
    Activation(kind, 0.3 if kind is ActivationKind.FATRELU else 0.0) for kind in ActivationKind
]
SPARSE = [activation for activation in ACTIVATIONS if activation.is_sparse]
SIZES = (256, 512)


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("is_gated", [True, False])
@pytest.mark.parametrize("is_down_transposed", [True, False])
@pytest.mark.parametrize("num_tokens", [1, 3, 40])
@pytest.mark.parametrize("is_prompt", [False, True])
def test_agrees_with_the_reference(
    kernels: str,
    activation: Activation,
    is_gated: bool,
    is_down_transposed: bool,
    num_tokens: int,
    is_prompt: bool,
) -> None:
    native, oracle = both(kernels)
    x = numbers((num_tokens, 72), 1)
    modes = (False, True) if activation.is_sparse else (False,)
    for is_exact_sparse in modes:
        results = [
            ops.ffn(
                x,
                make_ffn(
                    ops,
                    activation,
                    (72, 130),
                    is_gated=is_gated,
                    is_down_transposed=is_down_transposed,
                    is_exact_sparse=is_exact_sparse,
                    has_bias=True,
                ),
                is_prompt=given_rows(num_tokens) if is_prompt else None,
            )
            for ops in (native, oracle)
        ]
        assert_close(results[0], results[1], "one operation, float")


@pytest.mark.parametrize("format_name", FORMATS)
def test_formats_agree_with_the_reference(kernels: str, format_name: str) -> None:
    kind = "float" if format_name in ("f32", "f16", "bf16") else "quantized"
    for num_tokens, marks in ((1, None), (40, None), (40, given_rows(40))):
        for is_exact_sparse in (False, True):
            results = [
                ops.ffn(
                    numbers((num_tokens, 256), 1),
                    make_ffn(
                        ops,
                        Activation(ActivationKind.DRELU),
                        SIZES,
                        format_name=format_name,
                        is_exact_sparse=is_exact_sparse,
                    ),
                    is_prompt=marks,
                )
                for ops in both(kernels)
            ]
            is_rounded = marks is not None and rounds_to_bf16(kernels, format_name)
            name = "bf16" if is_rounded else kind
            assert_close(results[0], results[1], f"one operation, {name}")


def test_bits_do_not_depend_on_threads(kernels: str) -> None:
    for num_tokens, marks in ((1, None), (5, None), (40, None), (40, given_rows(40))):
        for is_exact_sparse in (False, True):
            results = []
            for threads in THREADS:
                ops = use_kernels(kernels, threads)
                ffn = make_ffn(
                    ops,
                    Activation(ActivationKind.RELU),
                    SIZES,
                    format_name="q4_0",
                    is_exact_sparse=is_exact_sparse,
                )
                x = numbers((num_tokens, 256), 1)
                results.append(ops.ffn(x, ffn, is_prompt=marks))
            assert all(same_bits(result, results[0]) for result in results)


@pytest.mark.parametrize("activation", SPARSE, ids=str)
def test_skipping_equals_not_skipping(kernels: str, activation: Activation) -> None:
    ops = use_kernels(kernels)
    x = numbers((1, 256), 5)
    exact = ops.ffn(x, make_ffn(ops, activation, SIZES, is_exact_sparse=True))
    skipped_bytes = ops.counters.bytes_read
    dense = ops.ffn(x, make_ffn(ops, activation, SIZES))
    assert_close(exact, dense, "exact sparse")
    assert skipped_bytes < ops.counters.bytes_read - skipped_bytes


def test_counts_what_it_did(kernels: str) -> None:
    native, oracle = both(kernels)
    for ops in (native, oracle):
        ops.ffn(
            numbers((1, 256), 5),
            make_ffn(ops, Activation(ActivationKind.DRELU), SIZES, is_exact_sparse=True),
        )
    assert native.counters == oracle.counters


@pytest.mark.parametrize("is_exact_sparse", [False, True])
def test_bad_numbers_reach_the_output(kernels: str, is_exact_sparse: bool) -> None:
    ops = use_kernels(kernels)
    ffn = make_ffn(ops, Activation(ActivationKind.RELU), SIZES, is_exact_sparse=is_exact_sparse)
    for num_tokens, marks in ((1, None), (40, None), (40, given_rows(40))):
        x = numbers((num_tokens, 256), 5)
        x[0, 7] = np.nan
        assert not np.isfinite(ops.ffn(x, ffn, is_prompt=marks)[0]).any()


def test_refuses_blocks_that_do_not_fit() -> None:
    ops = use_kernels("portable")
    with pytest.raises(UnsupportedError, match="no neurons to skip"):
        make_ffn(ops, Activation(ActivationKind.SILU), SIZES, is_exact_sparse=True)
    ffn = make_ffn(ops, Activation(ActivationKind.RELU), SIZES)
    with pytest.raises(ShapeError, match=r"x is \[1, 255\], must be \[any, 256\]"):
        ops.ffn(numbers((1, 255), 0), ffn)
