"""Native copies of matrices: the bytes of the numpy encoders, and what copies lose."""

import numpy as np
import pytest

from native_cases import FORMATS, THREADS, numbers, tensor
from powerinfer import _core
from powerinfer.errors import NumericsError, ShapeError, UnsupportedError
from powerinfer.gguf import Tensor
from powerinfer.ops.cpu.weights import REPACKED_FORMATS
from powerinfer.quant import get_format, internal_format_names
from powerinfer.values import FloatArray

TARGETS = ("f16", "q8_0", "q4_0", "q5_1", "mxfp4", "lowbit2", "lowbit3", "sign")


def matrix_of(source: Tensor) -> _core.Matrix:
    rows, columns = source.shape
    return _core.Matrix(source.data.reshape(-1).view(np.uint8), source.format, rows, columns)


def padded(values: FloatArray, block_size: int) -> FloatArray:
    rows, columns = values.shape
    out = np.zeros((rows, -(-columns // block_size) * block_size), np.float32)
    out[:, :columns] = values
    return out


def products(team: _core.ThreadTeam, matrix: _core.Matrix, x: FloatArray) -> FloatArray:
    out = np.empty((len(x), matrix.rows), np.float32)
    _core.linear(team, x, [matrix], [None], [out])
    return out


def as_matrix(encoded: np.ndarray, format_name: str, columns: int) -> _core.Matrix:
    return _core.Matrix(encoded.reshape(-1), format_name, len(encoded), columns)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("columns", [96, 256, 352, 1024])
def test_copies_hold_what_the_numpy_encoder_writes(kernels: str, target: str, columns: int) -> None:
    """Equal bytes give equal products, bit for bit; bytes themselves stay in C++."""
    source = tensor("f32", (37, columns), 5)
    team = _core.ThreadTeam(2, kernels)
    copy = _core.recode(team, matrix_of(source), target, _core.Arena())
    fmt = get_format(target)
    values = padded(source.data.view(np.float32).reshape(source.shape), fmt.block_size)
    wanted = as_matrix(fmt.encode(values), target, values.shape[1])
    if copy.format == "q4_0_superblock":
        wanted = _core.repack(team, wanted, _core.Arena())
    assert (copy.rows, copy.columns) == (37, values.shape[1])
    assert (copy.format, copy.nbytes) == (wanted.format, wanted.nbytes)
    for seed in range(3):
        x = padded(numbers((2, columns), seed), fmt.block_size)
        assert np.array_equal(products(team, copy, x), products(team, wanted, x))


@pytest.mark.parametrize("source_format", FORMATS)
def test_every_format_can_be_the_source(source_format: str) -> None:
    source = tensor(source_format, (6, 512), 7)
    team = _core.ThreadTeam(1)
    copy = _core.recode(team, matrix_of(source), "lowbit3", _core.Arena())
    decoded = get_format(source_format).decode(source.data.view(np.uint8).reshape(6, -1))
    wanted = as_matrix(get_format("lowbit3").encode(decoded), "lowbit3", 512)
    x = numbers((1, 512), 1)
    assert np.array_equal(products(team, copy, x), products(team, wanted, x))


@pytest.mark.parametrize("source_format", sorted(REPACKED_FORMATS))
def test_superblocks_are_a_source_too(source_format: str) -> None:
    team, arena = _core.ThreadTeam(1), _core.Arena()
    columns = 480 if get_format(source_format).block_size == 32 else 512
    plain = matrix_of(tensor(source_format, (6, columns), 7))
    packed = _core.repack(team, plain, arena)
    for target in TARGETS:
        x = padded(numbers((1, columns), 1), get_format(target).block_size)
        ours, wanted = (_core.recode(team, m, target, arena) for m in (packed, plain))
        assert np.array_equal(products(team, ours, x), products(team, wanted, x))


@pytest.mark.parametrize("target", internal_format_names())
def test_internal_formats_multiply_like_their_decoded_weights(kernels: str, target: str) -> None:
    fmt = get_format(target)
    encoded = fmt.encode(numbers((50, 768), 3))
    x = numbers((40, 768), 4)
    rounded = (
        np.where(x < 0, -1, 1) * np.abs(x).mean(axis=1, keepdims=True) if target == "sign" else x
    )
    wanted = rounded.astype(np.float64) @ fmt.decode(encoded).T
    matrix = as_matrix(encoded, target, 768)
    for num_tokens in (1, 3, 40):
        out = products(_core.ThreadTeam(2, kernels), matrix, x[:num_tokens])
        assert np.abs(out - wanted[:num_tokens]).max() < 0.02 * wanted.std()


@pytest.mark.parametrize("target", ["lowbit2", "q8_0", "sign"])
def test_statistics_of_copies(kernels: str, target: str) -> None:
    values = numbers((60, 500), 1)
    matrix = _core.Matrix(values.reshape(-1).view(np.uint8), "f32", 60, 500)
    mean, variance = numbers((500,), 2), numbers((500,), 3) ** 2
    fmt = get_format(target)
    copied = fmt.decode(fmt.encode(padded(values, fmt.block_size)))[:, :500].astype(np.float64)
    square = (values - copied) ** 2 @ variance
    if target == "sign":
        square += copied**2 @ variance * (1 - 2 / np.pi)
    results = []
    for threads in THREADS:
        team = _core.ThreadTeam(threads, kernels)
        copy = _core.recode(team, matrix, target, _core.Arena())
        offset, noise = np.empty((2, 60), np.float32)
        _core.copy_statistics(team, matrix, copy, mean, variance, offset, noise)
        results.append(np.stack([offset, noise]))
        assert np.array_equal(results[0], results[-1])
    np.testing.assert_allclose(results[0][0], values.astype(np.float64) @ mean, atol=2e-4)
    np.testing.assert_allclose(results[0][1], np.sqrt(square), rtol=1e-5)


def test_what_cannot_be_recoded_is_refused() -> None:
    team, arena = _core.ThreadTeam(2), _core.Arena()
    values = numbers((4, 256), 1)
    values[2, 9] = np.nan
    matrix = _core.Matrix(values.reshape(-1).view(np.uint8), "f32", 4, 256)
    with pytest.raises(NumericsError, match=r"row 2 .*lowbit2"):
        _core.recode(team, matrix, "lowbit2", arena)
    with pytest.raises(UnsupportedError, match=r"'q1'.* f16, .*q4_0, .*lowbit2, lowbit3, sign"):
        _core.recode(team, matrix, "q1", arena)
    copy = _core.recode(team, matrix, "f16", arena)
    right, out = np.zeros(256, np.float32), np.zeros(4, np.float32)
    for mean, offset, rows in ((right[1:], out, 4), (right, out[1:], 4), (right, out, 3)):
        other = _core.Matrix(values[:rows].reshape(-1).view(np.uint8), "f32", rows, 256)
        with pytest.raises(ShapeError):
            _core.copy_statistics(team, other, copy, mean, right, offset, out)
    narrow = _core.Matrix(values[:, :128].copy().reshape(-1).view(np.uint8), "f32", 4, 128)
    with pytest.raises(ShapeError, match="copy"):
        _core.copy_statistics(team, matrix, narrow, right, right, out, out)
