"""Rows of weights in the encoding of files, whatever layout the native backend gave them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from native_cases import FORMATS, same_bits, tensor
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.protocol import MatrixUse
from powerinfer.quant import get_format


@pytest.mark.parametrize("repack", [True, False])
@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_encoded_rows_decode_to_the_tensor(repack: bool, data: st.DataObject) -> None:
    format_name = data.draw(st.sampled_from(FORMATS))
    rows = data.draw(st.integers(1, 40))
    columns = 256 * data.draw(st.integers(1, 3))
    if get_format(format_name).block_size == 32:
        columns -= data.draw(st.sampled_from((0, 32)))
    ids = data.draw(st.none() | st.lists(st.integers(0, rows - 1), max_size=60))
    ops = NativeOps(2, repack=repack, in_place=data.draw(st.booleans()))
    source = tensor(format_name, (rows, columns), data.draw(st.integers(0, 99)))
    matrix = ops.matrix(source, MatrixUse.NEURONS)
    assert ops.matrix_format(matrix) == format_name
    chosen = None if ids is None else np.array(ids, np.int32)
    got = ops.encoded_rows(matrix, chosen)
    want = source.decode() if chosen is None else source.decode()[chosen]
    assert same_bits(get_format(format_name).decode(got), want)


@pytest.mark.parametrize("target", ["q8_0", "q4_0", "lowbit2", "lowbit3", "sign"])
def test_encoded_rows_of_copies_for_predictors(target: str) -> None:
    ops = NativeOps(2)
    source = tensor("f16", (37, 512), 3)
    copy = ops.recode(ops.matrix(source, MatrixUse.DENSE), target)
    assert ops.matrix_format(copy) == target
    ids = np.array([36, 0, 5, 5], np.int32)
    known = get_format(target)
    want = known.encode(source.decode())
    assert np.array_equal(ops.encoded_rows(copy), want)
    assert np.array_equal(ops.encoded_rows(copy, ids), want[ids])


def test_encoded_rows_refuse_other_rows() -> None:
    ops = NativeOps(1)
    matrix = ops.matrix(tensor("f16", (4, 32), 1), MatrixUse.DENSE)
    for bad in (-1, 4):
        with pytest.raises(IndexError, match=f"row {bad} is not in"):
            ops.encoded_rows(matrix, np.array([0, bad], np.int32))
    assert ops.encoded_rows(matrix, np.empty(0, np.int32)).shape == (0, 64)
