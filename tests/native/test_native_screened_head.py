"""The screened head computes every wanted logit, with the bits that the whole head gives it."""

from pathlib import Path

import numpy as np
import pytest

from native_cases import make_linear, numbers, same_bits, use_kernels
from powerinfer.errors import NumericsError, ShapeError, UnsupportedError
from powerinfer.gguf import Tensor
from powerinfer.models.scales import Scales
from powerinfer.models.tensors.screened_head import ScreenedHead, check_screenable
from powerinfer.ops.backend import Backend, SomeLinear, as_backend
from powerinfer.ops.head_ops import UNWANTED_LOGIT
from powerinfer.ops.protocol import Linear, MatrixUse, WantedLogits
from powerinfer.ops.reference.ops import ReferenceOps
from powerinfer.quant import get_format
from powerinfer.values import FloatArray

VOCAB = 700
# A copy of either has columns that are in it twice; rows of 512 are superblocks.
SIZES = (288, 512)
WANTED = (WantedLogits(1), WantedLogits(7), WantedLogits(1, 3.0), WantedLogits(VOCAB + 5))


def close_head(ops: Backend, format_name: str, size: int) -> SomeLinear:
    """A head whose logits differ by less than the rounding of its copy."""
    rows = numbers((1, size), 1) + np.float32(0.01) * numbers((VOCAB, size), 2)
    data = get_format(format_name).encode(rows).reshape(-1).view(np.uint8)
    tensor = Tensor("output.weight", (VOCAB, size), format_name, data, Path("test.gguf"))
    return Linear(ops.matrix(tensor, MatrixUse.DENSE), None)


def inputs(num_tokens: int, size: int) -> FloatArray:
    """States with a few columns that are much larger than the others."""
    x = numbers((num_tokens, size), 3)
    x[:, 5:size:40] *= 30
    return x


def check(ops: Backend, head: SomeLinear, x: FloatArray, wanted: WantedLogits) -> int:
    """Compare with the whole head; return the number of logits computed."""
    whole = np.asarray(ops.linear(x, (head,))[0])
    screen = ScreenedHead.of(ops, head, x)
    found = screen.logits(ops, head, x, [wanted] * len(x))
    is_computed = found != UNWANTED_LOGIT
    assert same_bits(found[is_computed], whole[is_computed])
    last = np.sort(whole, axis=1)[:, -min(wanted.count, VOCAB)] - np.float32(wanted.margin)
    assert is_computed[whole >= last[:, None]].all()
    assert screen.computed_rows == np.count_nonzero(is_computed)
    return screen.computed_rows


@pytest.mark.parametrize("wanted", WANTED, ids=str)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("format_name", ["f32", "f16", "bf16", "q8_0", "q5_1"])
def test_wanted_logits_are_computed(
    kernels: str, format_name: str, size: int, wanted: WantedLogits
) -> None:
    ops = as_backend(use_kernels(kernels))
    check(ops, close_head(ops, format_name, size), inputs(9, size), wanted)
    head = make_linear(ops, format_name, (VOCAB, size), 4, has_bias=True)
    check(ops, head, inputs(3, size), wanted)


@pytest.mark.parametrize("format_name", ["q6_k", "q8_0"])
def test_superblocks_and_k_quants(kernels: str, format_name: str) -> None:
    ops = as_backend(use_kernels(kernels))
    head = make_linear(ops, format_name, (VOCAB, 512), 4)
    assert check(ops, head, inputs(20, 512), WantedLogits(1)) < 20 * VOCAB // 2


def test_reference_computes_the_wanted_logits() -> None:
    ops = as_backend(ReferenceOps())
    for wanted in WANTED:
        check(ops, close_head(ops, "f16", 288), inputs(4, 288), wanted)


def test_rows_do_not_depend_on_the_others(kernels: str) -> None:
    ops = as_backend(use_kernels(kernels))
    head, x = make_linear(ops, "q8_0", (VOCAB, 288), 4), inputs(40, 288)
    screen = ScreenedHead.of(ops, head, x)
    wanted = [None if i % 3 == 2 else WANTED[i % 2] for i in range(len(x))]
    together = screen.logits(ops, head, x, wanted)
    for i, each in enumerate(wanted):
        assert same_bits(screen.logits(ops, head, x[i : i + 1], [each])[0], together[i])
    others = ScreenedHead.of(as_backend(use_kernels(kernels, 3)), head, x)
    assert same_bits(others.logits(as_backend(use_kernels(kernels, 3)), head, x, wanted), together)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_damaged_states_show(kernels: str, bad: float) -> None:
    ops = as_backend(use_kernels(kernels))
    head, x = make_linear(ops, "q8_0", (VOCAB, 288), 4), inputs(2, 288)
    screen = ScreenedHead.of(ops, head, x)
    x[1, 7] = bad
    first, second = screen.logits(ops, head, x, [WantedLogits(1)] * 2)
    assert np.isfinite(first).all()
    assert not np.isfinite(second).all()


def test_damaged_heads_are_refused() -> None:
    ops = as_backend(use_kernels("portable"))
    rows = numbers((VOCAB, 288), 1)
    rows[3, 3] = np.nan
    tensor = Tensor("output.weight", rows.shape, "f32", rows.reshape(-1).view(np.uint8), Path("t"))
    with pytest.raises(NumericsError, match="NaN, infinity or numbers beyond"):
        ScreenedHead.of(ops, Linear(ops.matrix(tensor, MatrixUse.DENSE)), inputs(2, 288))


def test_wrong_shapes_are_refused() -> None:
    ops = as_backend(use_kernels("portable"))
    head, x = make_linear(ops, "q8_0", (VOCAB, 288), 4), inputs(2, 288)
    copy = ScreenedHead.of(ops, head, x).copy
    other = make_linear(ops, "q8_0", (VOCAB - 1, 288), 4)
    with pytest.raises(ShapeError, match="norms"):
        ops.screened_head(x, other, copy, [WantedLogits(1)] * 2)
    with pytest.raises(ShapeError, match="counts"):
        ops.screened_head(x, head, copy, [WantedLogits(1)])
    with pytest.raises(ShapeError, match="at least one"):
        ops.screened_head(x[:1], head, copy, [WantedLogits(0)])


def test_heads_that_no_copy_serves_are_refused() -> None:
    ops = as_backend(use_kernels("portable"))
    scales = Scales(1.0, 1.0, 1.0, 1.0, None, None)
    check_screenable(ops, make_linear(ops, "q8_0", (VOCAB, 512), 4), scales)
    with pytest.raises(UnsupportedError, match="no smaller"):
        check_screenable(ops, make_linear(ops, "q4_0", (VOCAB, 512), 4), scales)
    with pytest.raises(UnsupportedError, match="rows of 40 numbers"):
        check_screenable(ops, make_linear(ops, "f32", (VOCAB, 40), 4), scales)
    capped = Scales(1.0, 1.0, 1.0, 1.0, None, 30.0)
    with pytest.raises(UnsupportedError, match="caps its logits"):
        check_screenable(ops, make_linear(ops, "q8_0", (VOCAB, 512), 4), capped)
