"""The layout of superblocks: same results, source pages given back."""

import mmap
from pathlib import Path

import numpy as np
import pytest

from native_cases import host_ops, numbers, reference, same_bits, tensor
from powerinfer import _core
from powerinfer.gguf import Tensor
from powerinfer.ops.cpu.ops import NativeOps
from powerinfer.ops.cpu.weights import REPACKED_FORMATS
from powerinfer.ops.protocol import Linear, MatrixUse
from powerinfer.quant import get_format
from tolerances import assert_close


def mapped(path: Path, source: Tensor) -> Tensor:
    """The tensor as a view of a mapped file, at an offset that no page starts at."""
    path.write_bytes(bytes(100) + source.data.tobytes())
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    data = np.frombuffer(mapping, np.uint8, len(source.data), 100)
    return Tensor(source.name, source.shape, source.format, data, path)


@pytest.mark.parametrize("format_name", sorted(REPACKED_FORMATS))
@pytest.mark.parametrize("num_tokens", [1, 4, 40])
@pytest.mark.parametrize("is_prompt", [False, True])
def test_repacked_matrices_give_the_same_products(
    kernels: str, num_tokens: int, format_name: str, is_prompt: bool
) -> None:
    columns = 736 if get_format(format_name).block_size == 32 else 768
    source, x = tensor(format_name, (131, columns), 1), numbers((num_tokens, columns), 2)
    marks = np.full(num_tokens, is_prompt)
    results = []
    native = NativeOps(2, kernels), NativeOps(2, kernels, repack=False)
    for ops in (*map(host_ops, native), host_ops(reference())):
        results.append(ops.linear(x, [Linear(ops.matrix(source, MatrixUse.DENSE))], marks)[0])
    assert_close(results[0], results[1], "one operation, float")
    # Prompts unpack both layouts to the same codes and scales.
    assert not is_prompt or same_bits(results[0], results[1])
    assert_close(results[0], results[2], "one operation, quantized")


def test_rows_with_superblocks_are_repacked_unless_rows_are_looked_up() -> None:
    ops = NativeOps(1)
    for format_name, columns, use, expected in (
        ("q4_0", 512, MatrixUse.DENSE, "q4_0_superblock"),
        ("q4_0", 288, MatrixUse.DENSE, "q4_0_superblock"),
        ("q4_0", 224, MatrixUse.DENSE, "q4_0"),
        ("q4_1", 576, MatrixUse.NEURONS, "q4_1_superblock"),
        ("q5_0", 640, MatrixUse.DENSE, "q5_0_superblock"),
        ("q5_1", 512, MatrixUse.DENSE, "q5_1_superblock"),
        ("q4_0", 512, MatrixUse.NEURONS, "q4_0_superblock"),
        ("q4_0", 512, MatrixUse.EMBEDDING, "q4_0"),
        ("q4_k", 512, MatrixUse.DENSE, "q4_k_superblock"),
        ("q5_k", 256, MatrixUse.NEURONS, "q5_k_superblock"),
        ("q6_k", 768, MatrixUse.DENSE, "q6_k_superblock"),
        ("q6_k", 768, MatrixUse.EMBEDDING, "q6_k"),
        ("q8_0", 512, MatrixUse.DENSE, "q8_0_superblock"),
        ("q8_0", 512, MatrixUse.EMBEDDING, "q8_0"),
        ("mxfp4", 512, MatrixUse.DENSE, "mxfp4"),
    ):
        matrix = ops.matrix(tensor(format_name, (4, columns), 1), use)
        assert matrix.format == expected
        assert ops.matrix_bytes(matrix) == len(tensor(format_name, (4, columns), 1).data)


def test_the_file_stays_readable_after_its_pages_were_released(tmp_path: Path) -> None:
    source = tensor("q4_0", (512, 512), 3)
    on_disk = mapped(tmp_path / "weights", source)
    NativeOps(1).matrix(on_disk, MatrixUse.DENSE)
    assert np.array_equal(on_disk.data, source.data)


@pytest.mark.parametrize("format_name", ["f32", "f16", "bf16", "mxfp4", "q4_0", "q5_1"])
def test_copies_in_huge_pages_give_the_same_bits(tmp_path: Path, format_name: str) -> None:
    source, x = tensor(format_name, (131, 768), 1), numbers((2, 768), 2)
    on_disk = mapped(tmp_path / "weights", source)
    results = []
    for in_place in (True, False):
        ops = NativeOps(2, in_place=in_place)
        matrix = ops.matrix(on_disk, MatrixUse.DENSE)
        results.append(ops.linear(x, [Linear(matrix)])[0])
    np.testing.assert_array_equal(results[0], results[1])
    assert np.array_equal(on_disk.data, source.data)


def test_copies_do_not_need_the_file(tmp_path: Path) -> None:
    source, x = tensor("f16", (256, 768), 1), numbers((1, 768), 2)
    (tmp_path / "weights").write_bytes(source.data.tobytes())
    writable = np.memmap(tmp_path / "weights", np.uint8, "r+")
    ops = NativeOps(1, in_place=False)
    matrix = ops.matrix(
        Tensor(source.name, source.shape, source.format, writable, tmp_path), MatrixUse.NEURONS
    )
    before = ops.linear(x, [Linear(matrix)])[0]
    writable[:] = 0
    np.testing.assert_array_equal(ops.linear(x, [Linear(matrix)])[0], before)


def test_arrays_in_memory_are_never_released() -> None:
    source = tensor("q4_0", (512, 512), 3)
    before = source.data.copy()
    NativeOps(1).matrix(source, MatrixUse.DENSE)
    assert np.array_equal(source.data, before)


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's /proc")
def test_repacking_does_not_keep_two_copies(tmp_path: Path) -> None:
    on_disk = mapped(tmp_path / "weights", tensor("q4_0", (8192, 1024), 3))
    assert int(on_disk.data.max()) == 255  # touches every page
    assert _resident_bytes(tmp_path / "weights") > 4 << 20
    NativeOps(2).matrix(on_disk, MatrixUse.DENSE)
    assert _resident_bytes(tmp_path / "weights") < 64 << 10


def _resident_bytes(path: Path) -> int:
    """Pages of a mapped file that this process holds."""
    is_inside, total = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        head = line.split()[0]
        if not head.endswith(":"):
            is_inside = line.endswith(str(path))
        elif is_inside and head == "Rss:":
            total += int(line.split()[1]) * 1024
    return total


def test_repack_refuses_other_matrices() -> None:
    for format_name, columns in (("mxfp4", 256), ("q8_0", 224)):
        data = tensor(format_name, (4, columns), 0).data
        matrix = _core.Matrix(data, format_name, 4, columns)
        with pytest.raises(ValueError, match=f"rows of {columns} weights in {format_name}"):
            _core.repack(_core.ThreadTeam(1), matrix, _core.Arena())
