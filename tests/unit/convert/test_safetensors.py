"""Reading safetensors files: the values of the package, and one error for anything damaged."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from checkpoint_files import bf16, safetensors_bytes, write_safetensors
from powerinfer.convert.checkpoint.safetensors import read_safetensors
from powerinfer.errors import CheckpointError

RANDOM = np.random.default_rng(3)
TENSORS: dict[str, npt.NDArray[Any]] = {
    "a.weight": RANDOM.standard_normal((3, 5)).astype(np.float32),
    "half": RANDOM.standard_normal(7).astype(np.float16),
    "scalar": np.array(2.5, np.float64),
    "empty": np.zeros((0, 4), np.float32),
    "bytes": np.arange(9, dtype=np.uint8),
}


def with_header(entries: Any, data: bytes = b"") -> bytes:
    header = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return len(header).to_bytes(8, "little") + header + data


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_values_are_those_of_the_package(tmp_path: Path) -> None:
    numpy_files = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    path = tmp_path / "theirs.safetensors"
    numpy_files.save_file(TENSORS, path, metadata={"format": "np"})
    found = read_safetensors(path)
    assert set(found) == set(TENSORS)
    for name, values in TENSORS.items():
        assert found[name].shape == values.shape
        np.testing.assert_array_equal(found[name].values, values)
    ours = numpy_files.load_file(write_safetensors(tmp_path / "ours.safetensors", TENSORS))
    for name, values in TENSORS.items():
        np.testing.assert_array_equal(ours[name], values)


def test_bf16_is_read_as_bits(tmp_path: Path) -> None:
    values = bf16(RANDOM.standard_normal((2, 3)))
    path = write_safetensors(tmp_path / "m.safetensors", {"odd": np.ones(1, np.uint8), "w": values})
    found = read_safetensors(path)["w"]
    assert (found.format, found.shape) == ("bf16", (2, 3))
    np.testing.assert_array_equal(found.values, values.bits)


def test_types_without_use_are_listed_and_not_read(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "m.safetensors", {"ids": np.arange(3)})
    found = read_safetensors(path)["ids"]
    assert (found.format, found.shape, found.values.size) == ("I64", (3,), 0)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "has 0 bytes"),
        (b"1234567", "has 7 bytes"),
        ((1 << 62).to_bytes(8, "little") + b"{}", "truncated, or not a safetensors file"),
        (with_header(b"{"), "not JSON"),
        (with_header(b"[" * 100_000), "not JSON"),
        (with_header(b"\xff\xfe"), "not JSON"),
        (with_header([]), "not a JSON object"),
        (with_header(b'{"a": 1' + b"0" * 5000 + b"}"), "not JSON"),
        (with_header(b'{"a": {}, "a": {}}'), "'a' is in the header twice"),
        (with_header({"a": 1}), "tensor 'a': expected dtype"),
        (with_header({"a": entry() | {"more": 1}}, bytes(8)), "nothing else"),
        (with_header({"a": entry("F7")}, bytes(8)), "type 'F7' is unknown"),
        (with_header({"a": entry(dtype=["F32"])}, bytes(8)), "is unknown"),  # type: ignore[arg-type]
        (with_header({"a": entry(shape=[-2])}, bytes(8)), "shape [-2]"),
        (with_header({"a": entry(shape=[True, 2])}, bytes(8)), "shape [True, 2]"),
        (with_header({"a": entry(shape=[2.0])}, bytes(8)), "shape [2.0]"),
        (with_header({"a": entry(shape=[1] * 9, offsets=[0, 4])}, bytes(4)), "at most 8"),
        (with_header({"a": entry(shape=[1 << 60])}, bytes(8)), "shape"),
        (with_header({"a": entry(shape=[1 << 40, 1 << 40])}, bytes(8)), "takes"),
        (with_header({"a": entry(offsets=[0])}, bytes(8)), "expected begin and end"),
        (with_header({"a": entry(offsets=[8, 0])}, bytes(8)), "hold -8"),
        (with_header({"a": entry(offsets=[0, 12])}, bytes(12)), "hold 12"),
        (with_header({"a": entry(offsets=[4, 12])}, bytes(12)), "leaves a gap"),
        (
            with_header({"a": entry(), "b": entry(offsets=[4, 12])}, bytes(12)),
            "overlaps the previous one",
        ),
        (with_header({"a": entry()}, bytes(7)), "is truncated"),
        (with_header({"a": entry()}, bytes(9)), "more than its tensors"),
    ],
)
def test_damaged_files(content: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        read_safetensors(path)
    assert str(caught.value).startswith(f"{path}: ") and "\n" not in str(caught.value)
    assert problem in str(caught.value)


def test_an_absurd_header_is_not_parsed(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    size = (32 << 20) + 1
    with path.open("wb") as file:
        file.write(size.to_bytes(8, "little"))
        file.truncate(size + 100)
    with pytest.raises(CheckpointError, match="at most 33554432 are read"):
        read_safetensors(path)


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_safetensors(tmp_path / "none.safetensors")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_safetensors(tmp_path)


def test_tensors_are_in_the_order_of_their_data(tmp_path: Path) -> None:
    header = {"b": entry(offsets=[8, 16]), "a": entry()}
    path = tmp_path / "m.safetensors"
    path.write_bytes(with_header(header, bytes(16)))
    assert list(read_safetensors(path)) == ["a", "b"]
    path.write_bytes(safetensors_bytes({}))
    assert read_safetensors(path) == {}
