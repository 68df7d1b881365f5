"""Products of activations and weights against the numpy reference."""

import numpy as np
import pytest

from native_cases import (
    FORMATS,
    THREADS,
    both,
    given_rows,
    make_linear,
    numbers,
    rounds_to_bf16,
    same_bits,
    tensor,
    use_kernels,
)
from powerinfer.errors import ShapeError, UnsupportedError
from powerinfer.gguf import Tensor
from powerinfer.ops.protocol import MatrixUse
from tolerances import assert_close

BLOCK = {"f32": 1, "f16": 1, "bf16": 1, "q4_k": 256, "q5_k": 256, "q6_k": 256}


def shapes(format_name: str) -> list[tuple[int, int]]:
    """Rows and columns with tails in both directions."""
    block = BLOCK.get(format_name, 32)
    columns = {1: (1, 37, 288), 32: (32, 288, 768), 256: (256, 768)}[block]
    return [(rows, n) for rows, n in zip((33, 67, 130), columns, strict=False)]


def row(format_name: str) -> str:
    """The line of the tolerance table."""
    return "one operation, float" if BLOCK.get(format_name) == 1 else "one operation, quantized"


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("num_tokens", [1, 3, 40])
@pytest.mark.parametrize("is_prompt", [False, True])
def test_agrees_with_the_reference(
    kernels: str, format_name: str, num_tokens: int, is_prompt: bool
) -> None:
    native, oracle = both(kernels)
    marks = given_rows(num_tokens) if is_prompt else None
    for shape in shapes(format_name):
        x = numbers((num_tokens, shape[1]), 3)
        results = [
            ops.linear(x, [make_linear(ops, format_name, shape, 5, has_bias=True)], marks)[0]
            for ops in (native, oracle)
        ]
        is_rounded = is_prompt and rounds_to_bf16(kernels, format_name)
        name = "one operation, bf16" if is_rounded else row(format_name)
        assert_close(results[0], results[1], name)


@pytest.mark.parametrize("format_name", FORMATS)
def test_bits_do_not_depend_on_threads(kernels: str, format_name: str) -> None:
    for num_tokens, marks in ((1, None), (5, None), (40, None), (5, given_rows(5))):
        x = numbers((num_tokens, 512), 7)
        results = []
        for threads in THREADS:
            ops = use_kernels(kernels, threads)
            weights = make_linear(ops, format_name, (211, 512), 9)
            results.append(ops.linear(x, [weights], marks)[0])
        assert all(same_bits(result, results[0]) for result in results)


def test_several_matrices_in_one_call(kernels: str) -> None:
    native, oracle = both(kernels)
    x = numbers((2, 256), 1)
    names = ["f16", "q4_0", "q8_0", "q6_k"]
    made = [
        ops.linear(x, [make_linear(ops, name, (17 + i, 256), i) for i, name in enumerate(names)])
        for ops in (native, oracle)
    ]
    for name, got, expected in zip(names, made[0], made[1], strict=True):
        assert_close(got, expected, row(name))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_bad_numbers_reach_the_output(kernels: str, bad: float) -> None:
    ops = use_kernels(kernels)
    for format_name in FORMATS:
        for num_tokens, marks in ((1, None), (40, None), (40, given_rows(40))):
            x = numbers((num_tokens, 256), 2)
            x[0, 200] = bad
            out = ops.linear(x, [make_linear(ops, format_name, (5, 256), 4)], marks)[0]
            assert not np.isfinite(out[0]).any(), format_name
            assert np.isfinite(out[1:]).all(), format_name


def test_refuses_what_it_cannot_multiply() -> None:
    ops = use_kernels("portable")
    with pytest.raises(ShapeError, match=r"x is \[1, 64\], must be \[any, 32\]"):
        ops.linear(numbers((1, 64), 0), [make_linear(ops, "q4_0", (4, 32), 0)])
    with pytest.raises(ShapeError, match="must be a matrix"):
        ops.matrix(tensor("f32", (4,), 0), MatrixUse.DENSE)
    whole = tensor("q4_0", (4, 32), 0)
    with pytest.raises(ShapeError, match="does not fit"):
        ops.matrix(
            Tensor(whole.name, (5, 32), whole.format, whole.data, whole.file), MatrixUse.DENSE
        )
    with pytest.raises(UnsupportedError, match=r"iq2_xxs.*q4_k"):
        ops.matrix(Tensor("a", (4, 32), "iq2_xxs", whole.data, whole.file), MatrixUse.DENSE)
