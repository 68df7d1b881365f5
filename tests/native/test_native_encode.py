"""Native encoders of files' formats: the bytes of the numpy encoders, and what rows lose."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from encoder_cases import KINDS, importance, numbers_of_kind
from native_cases import FORMATS, THREADS, numbers, tensor
from powerinfer.errors import DeviceError, NumericsError, ShapeError, UnsupportedError
from powerinfer.ops.cpu.encode import encode_rows
from powerinfer.quant import get_format
from powerinfer.values import FloatArray

PLAIN = ("f32", "f16", "bf16")
LEGACY = ("q4_0", "q4_1", "q5_0", "q5_1", "q8_0")
K_QUANTS = ("q4_k", "q5_k", "q6_k")
WEIGHTED = (*LEGACY, *K_QUANTS)
TARGETS = (*PLAIN, *WEIGHTED)


def as_bytes(values: FloatArray) -> np.ndarray:
    return np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)


def same_bytes(
    values: FloatArray, target: str, kernels: str, weights: FloatArray | None = None
) -> bool:
    row_length = values.shape[1]
    ours = encode_rows(
        as_bytes(values),
        "f32",
        target,
        row_length,
        importance=weights,
        threads=1,
        kernels=kernels,
    )
    return np.array_equal(ours.data, get_format(target).encode(values, weights))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("scale", [1e-30, 1e-6, 0.02, 1.0, 3e3])
def test_bytes_are_those_of_the_numpy_encoder(kernels: str, target: str, scale: float) -> None:
    values = numbers((9, 1024), 3) * np.float32(scale)
    values[1] = np.abs(values[1])
    values[2] = -np.abs(values[2])
    values[3] = np.round(values[3] / np.float32(scale) * 2) * np.float32(scale)  # ties, zeros
    values[4, 100:300] = 0
    values[5] = values[5, 0]
    values[6, ::7] *= 4
    values[7] = np.where(values[7] > 0, np.float32(0.0), np.float32(-0.0))
    assert same_bytes(values, target, kernels)


@pytest.mark.parametrize("target", WEIGHTED)
@pytest.mark.parametrize("spread", [10, 1e6])
@pytest.mark.parametrize("columns", [2048, 1792])
def test_bytes_with_importance_are_those_of_the_numpy_encoder(
    kernels: str, target: str, spread: float, columns: int
) -> None:
    """1792: blocks of 256 that do not pair up."""
    weights = importance(spread)[:columns].copy()
    for kind in KINDS:
        values = np.ascontiguousarray(numbers_of_kind(kind)[:, :columns])
        assert same_bytes(values, target, kernels, weights)
        if target in K_QUANTS:
            assert same_bytes(values, target, kernels)
    weights[::3] = 0
    weights[256:600] = 0
    assert same_bytes(values, target, kernels, weights)
    assert same_bytes(values, target, kernels, np.zeros_like(weights))


@pytest.mark.parametrize("target", WEIGHTED)
@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
def test_bytes_agree_for_any_numbers(kernels: str, target: str, data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([60000.0, 1.0, 1e-4, 1e-7, 1e-38]))
    bound = float(np.float32(size))
    elements = st.floats(-bound, bound, width=32)
    values = data.draw(hnp.arrays(np.float32, (1, 512), elements=elements))
    weights = data.draw(
        hnp.arrays(np.float32, 512, elements=st.floats(0, 1000, width=32)) | st.none()
    )
    assert same_bytes(values, target, kernels, weights)


@pytest.mark.parametrize("source_format", FORMATS)
def test_every_format_can_be_the_source(source_format: str) -> None:
    source = tensor(source_format, (6, 512), 7)
    rows = source.data.view(np.uint8).reshape(6, -1)
    ours = encode_rows(rows, source_format, "q5_1", 512, threads=2)
    decoded = get_format(source_format).decode(rows)
    assert np.array_equal(ours.data, get_format("q5_1").encode(decoded))


@pytest.mark.parametrize("target", TARGETS)
def test_sums_are_those_of_the_decoded_rows_for_any_number_of_threads(target: str) -> None:
    values = numbers((301, 1280), 4)
    given_rows = as_bytes(values)
    results = [encode_rows(given_rows, "f32", target, 1280, threads=n) for n in THREADS]
    decoded = get_format(target).decode(results[0].data).astype(np.float64)
    wanted = (float(((decoded - values) ** 2).sum()), float((values.astype(np.float64) ** 2).sum()))
    for result in results:
        assert np.array_equal(result.data, results[0].data)
        sums = (result.squared_error, result.squared_sum)
        assert sums == (results[0].squared_error, results[0].squared_sum)
        assert sums == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_numbers_that_no_block_holds_are_refused_with_their_row(
    kernels: str, target: str, bad: float
) -> None:
    values = numbers((40, 512), 2)
    values[[21, 33], 300] = bad
    with pytest.raises(NumericsError, match=f"row 21 cannot be encoded as {target}"):
        encode_rows(as_bytes(values), "f32", target, 512, threads=2, kernels=kernels)


def test_numbers_beyond_the_scale_are_refused_and_large_ones_are_summed() -> None:
    values = np.full((2, 256), 1e25, np.float32)
    for target in ("f16", *WEIGHTED):
        with pytest.raises(NumericsError, match=f"row 0 cannot be encoded as {target}"):
            encode_rows(as_bytes(values), "f32", target, 256, threads=1)
    assert encode_rows(as_bytes(values), "f32", "bf16", 256, threads=1).squared_sum == (
        pytest.approx(512 * 1e50)
    )


def test_arguments_that_do_not_fit_are_refused() -> None:
    rows = as_bytes(numbers((2, 96), 1))
    with pytest.raises(ShapeError, match="does not fit 768 bytes"):
        encode_rows(rows, "f32", "q4_0", 128, threads=1)
    with pytest.raises(ShapeError, match="multiple of 32"):
        encode_rows(rows[:, :160], "f32", "q4_0", 40, threads=1)
    with pytest.raises(ShapeError, match="rows of bytes"):
        encode_rows(rows.reshape(-1), "f32", "q4_0", 192, threads=1)
    with pytest.raises(DeviceError, match="threads"):
        encode_rows(rows, "f32", "q4_0", 96, threads=0)
    with pytest.raises(DeviceError, match="kernels 'sse'"):
        encode_rows(rows, "f32", "q4_0", 96, threads=1, kernels="sse")
    with pytest.raises(ShapeError, match=r"f32\[96\]"):
        encode_rows(rows, "f32", "q4_0", 96, importance=np.ones(95, np.float32), threads=1)
    with pytest.raises(UnsupportedError, match="mxfp5"):
        encode_rows(rows, "f32", "mxfp5", 96, threads=1)
