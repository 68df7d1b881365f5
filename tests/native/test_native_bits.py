"""The rule of bits, operation by operation at real widths: rows do not depend on each other.

What `tests/properties/test_bits.py` says of whole models, where sizes are tiny.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native_cases import (
    FORMATS,
    KERNELS,
    given_rows,
    make_ffn,
    make_linear,
    make_predictor,
    numbers,
    same_bits,
    use_kernels,
)
from powerinfer.errors import ShapeError
from powerinfer.ops.cpu.handles import NativeFFN
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.protocol import ActiveIds
from powerinfer.values import Activation, ActivationKind, BoolArray, FloatArray

HIDDEN, NEURONS = 4096, 11008
# Of a block: few neurons, so that an example takes no longer than a few steps of a tiny model.
BLOCK = (HIDDEN, 256)
tables = pytest.mark.parametrize("table", KERNELS)
few_examples = settings(max_examples=max(5, settings().max_examples // 3))

Rows = Callable[[FloatArray, BoolArray], FloatArray]


@cache
def ops_of(table: str, threads: int) -> NativeOps:
    return use_kernels(table, threads)


def check_rows(run: Rows, x: FloatArray, marks: BoolArray, cut: int) -> None:
    """Every row alone, and some together, as among all of them."""
    whole = run(x, marks)
    for rows in [slice(i, i + 1) for i in range(len(x))] + [slice(0, cut), slice(cut, None)]:
        if len(x[rows]):
            part = run(np.ascontiguousarray(x[rows]), np.ascontiguousarray(marks[rows]))
            assert same_bits(part, np.ascontiguousarray(whole[rows])), rows


@st.composite
def some_rows(draw: st.DrawFn, columns: int) -> tuple[FloatArray, BoolArray, int]:
    """Activations, marks in runs, and where to cut them."""
    count = draw(st.integers(1, 40))
    kind = draw(st.sampled_from(["prompt", "decode", "both"]))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    x = random.standard_normal((count, columns)).astype(np.float32)
    runs = np.repeat(random.random(count) < 0.5, random.integers(1, 9, count))[:count]
    marks = runs if kind == "both" else np.full(count, kind == "prompt")
    return x, marks, draw(st.integers(0, count))


@tables
@few_examples
@given(
    format_name=st.sampled_from(FORMATS),
    columns=st.sampled_from([HIDDEN, NEURONS]),
    threads=st.sampled_from([1, 3]),
    data=st.data(),
)
def test_products(
    table: str, format_name: str, columns: int, threads: int, data: st.DataObject
) -> None:
    ops = ops_of(table, threads)
    weights = make_linear(ops, format_name, (9, columns), 5, has_bias=True)
    rows = data.draw(some_rows(columns))
    check_rows(lambda x, marks: ops.linear(x, [weights], marks)[0], *rows)


def make_block(ops: NativeOps, format_name: str, *, is_transposed: bool, skips: bool) -> NativeFFN:
    return make_ffn(
        ops,
        Activation(ActivationKind.RELU),
        BLOCK,
        format_name=format_name,
        is_down_transposed=is_transposed,
        is_exact_sparse=skips,
        has_bias=True,
    )


@tables
@few_examples
@given(format_name=st.sampled_from(FORMATS), is_transposed=st.booleans(), rows=some_rows(HIDDEN))
def test_dense_blocks(
    table: str,
    format_name: str,
    is_transposed: bool,
    rows: tuple[FloatArray, BoolArray, int],
) -> None:
    ops = ops_of(table, 2)
    ffn = make_block(ops, format_name, is_transposed=is_transposed, skips=False)
    check_rows(lambda x, marks: ops.ffn(x, ffn, None, marks), *rows)


@tables
@few_examples
@given(format_name=st.sampled_from(FORMATS), is_transposed=st.booleans(), rows=some_rows(HIDDEN))
def test_blocks_that_skip(
    table: str,
    format_name: str,
    is_transposed: bool,
    rows: tuple[FloatArray, BoolArray, int],
) -> None:
    """Up to 40 rows, more than share a pass: exact, predicted, and over lists."""
    ops = ops_of(table, 2)
    x, marks, cut = rows
    exact = make_block(ops, format_name, is_transposed=is_transposed, skips=True)
    check_rows(lambda x, marks: ops.ffn(x, exact, None, marks), x, marks, cut)
    predicted = replace(exact, predictor=make_predictor(ops, BLOCK))
    check_rows(lambda x, marks: ops.ffn(x, predicted, None, marks), x, marks, cut)
    every = np.random.default_rng(1).random((len(x), BLOCK[1])) < 0.3
    # A row's list goes with it: the first column says which row it is.
    x[:, 0] = np.arange(len(x))

    def listed(x: FloatArray, marks: BoolArray) -> FloatArray:
        return ops.ffn_active(x, exact, ActiveIds.of_mask(every[x[:, 0].astype(int)]), marks)

    check_rows(listed, x, marks, cut)


@tables
@few_examples
@given(rows=some_rows(HIDDEN))
def test_predictions(table: str, rows: tuple[FloatArray, BoolArray, int]) -> None:
    ops = ops_of(table, 2)
    predictor = make_predictor(ops, BLOCK)

    def masks(x: FloatArray, marks: BoolArray) -> FloatArray:
        return ops.predict(x, predictor, marks).mask(BLOCK[1]).astype(np.float32)

    check_rows(masks, *rows)


def test_marks_are_one_per_row() -> None:
    ops = use_kernels("portable")
    x, marks = numbers((3, 256), 0), given_rows(2)
    ffn = make_ffn(ops, Activation(ActivationKind.RELU), (256, 512))
    with pytest.raises(ShapeError, match="is_prompt has 2 entries, must have 3, one per row"):
        ops.linear(x, [make_linear(ops, "f32", (4, 256), 0)], marks)
    with pytest.raises(ShapeError, match="is_prompt has 2"):
        ops.ffn(x, ffn, None, marks)
    active = ActiveIds.of_mask(np.ones((3, 512), bool))
    with pytest.raises(ShapeError, match="is_prompt has 2"):
        ops.ffn_active(x, ffn, active, marks)
