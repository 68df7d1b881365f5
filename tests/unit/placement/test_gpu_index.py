"""PowerInfer's GPU index: round trips, files that PowerInfer would read, files that are wrong."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placement_cases import smallest
from powerinfer.errors import PlacementError
from powerinfer.gguf import TensorSpec, open_gguf, write_gguf
from powerinfer.placement.gpu_index import (
    beside,
    is_our_index,
    read_gpu_index,
    write_gpu_index,
)
from powerinfer.placement.plan import LayerPlacement, PlacementPlan

IDENTITY = "0123456789abcdef" * 4


def _plan(hot: list[list[int]], num_neurons: int, identity: str = IDENTITY) -> PlacementPlan:
    layers = tuple(LayerPlacement(True, True, np.array(ids, np.int32)) for ids in hot)
    return PlacementPlan(identity, "latency", 1 << 30, num_neurons, True, layers)


def _read(path: Path, num_layers: int, num_neurons: int) -> PlacementPlan:
    return read_gpu_index(path, smallest(num_layers, num_neurons, IDENTITY))


def _foreign(path: Path, hot: list[list[int]], num_neurons: int, **changes: Any) -> Path:
    """As PowerInfer's tool writes it, or nearly so."""
    metadata: dict[str, Any] = {
        "general.architecture": "generic.gpu_index",
        "generic.gpu_index.block_count": np.uint32(len(hot)),
        "split.vram_capacity": np.uint64(12345),
    }
    tensors: list[TensorSpec] = []
    for number, ids in enumerate(hot):
        mask = np.zeros(num_neurons, np.int32)
        mask[ids] = 1
        bucket = np.array(ids, np.int32)
        tensors.append((f"blk.{number}.gpu_idx", mask.shape, "i32", mask.tobytes()))
        tensors.append((f"blk.{number}.gpu_bucket", bucket.shape, "i32", bucket.tobytes()))
    for key, value in changes.pop("metadata", {}).items():
        metadata[key] = value
    change: Callable[[list[TensorSpec]], list[TensorSpec]] = changes.pop("change", list)
    write_gguf(path, metadata, change(tensors), magic=changes.pop("magic", "PWRI"))
    return path


@given(
    layers=st.integers(1, 40).flatmap(
        lambda neurons: st.tuples(
            st.just(neurons),
            st.lists(st.sets(st.integers(0, neurons - 1)).map(sorted), min_size=1, max_size=12),
        )
    ),
    capacity=st.integers(0, 2**63 - 1),
)
def test_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory,
    layers: tuple[int, list[list[int]]],
    capacity: int,
) -> None:
    path = tmp_path_factory.mktemp("index") / "m.gguf.generated.gpuidx"
    num_neurons, hot = layers
    write_gpu_index(path, _plan(hot, num_neurons), capacity)
    again = _read(path, len(hot), num_neurons)
    assert open_gguf(path).get_int("split.vram_capacity") == capacity
    assert [list(layer.hot) for layer in again.layers] == hot
    assert all(layer.has_attention and layer.has_predictor for layer in again.layers)
    assert (again.model_identity, again.budget_bytes, again.has_output) == (IDENTITY, 1 << 30, True)


def test_the_file_is_one_that_powerinfer_reads(tmp_path: Path) -> None:
    path = beside(tmp_path / "m.gguf")
    assert path.name == "m.gguf.generated.gpuidx"
    write_gpu_index(path, _plan([[], [0, 3], [0, 1, 2, 3]], 4), 77)
    data = path.read_bytes()
    assert data[:4] == b"PWRI"
    assert data[4:8] == (3).to_bytes(4, "little")
    file = open_gguf(path)
    assert list(file.tensors) == [
        f"blk.{number}.{name}" for number in range(3) for name in ("gpu_idx", "gpu_bucket")
    ]
    # The id that ggml gave to 32-bit integers when PowerInfer forked it.
    assert (
        data.count(
            b"gpu_idx"
            + (1).to_bytes(4, "little")
            + (4).to_bytes(8, "little")
            + (18).to_bytes(4, "little")
        )
        == 3
    )
    assert file.get_str("general.architecture") == "generic.gpu_index"
    assert file.get_int("generic.gpu_index.block_count") == 3
    assert file.types["generic.gpu_index.block_count"].name == "U32"
    assert file.get_int("split.vram_capacity") == 77
    assert file.types["split.vram_capacity"].name == "U64"
    assert file.tensors["blk.1.gpu_idx"].numbers().tolist() == [1, 0, 0, 1]
    assert file.tensors["blk.1.gpu_bucket"].numbers().tolist() == [0, 3]
    assert file.tensors["blk.0.gpu_bucket"].numbers().tolist() == []


def test_foreign_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    few = _foreign(tmp_path / "few", [[1, 2]] * 10, 4)
    assert [layer.hot.tolist() for layer in _read(few, 10, 4).layers] == [[1, 2]] * 10
    write_gpu_index(tmp_path / "ours", _plan([[1, 2]] * 11, 4), 1)
    _read(tmp_path / "ours", 11, 4)
    assert not caplog.records
    _read(_foreign(tmp_path / "many", [[1, 2]] * 11, 4), 11, 4)
    assert "from layer 2 on" in caplog.text
    # PowerInfer counts files of statistics there, and does not read it.
    strange = {"generic.gpu_index.block_count": np.uint32(99)}
    found = _read(_foreign(tmp_path / "s", [[1]], 4, metadata=strange), 1, 4)
    assert found.layers[0].hot.tolist() == [1]


def test_foreign_files_are_not_overwritten(tmp_path: Path) -> None:
    path = _foreign(tmp_path / "m", [[1, 2]], 4)
    before = path.read_bytes()
    text = tmp_path / "notes"
    text.write_text("not an index")
    for other in (path, text):
        with pytest.raises(PlacementError, match="is not overwritten: name another"):
            write_gpu_index(other, _plan([[1]], 4), 1)
    with pytest.raises(PlacementError, match="is not overwritten"):
        write_gpu_index(tmp_path, _plan([[1]], 4), 1)
    assert path.read_bytes() == before
    assert not is_our_index(path)


def test_our_files_are_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "m"
    write_gpu_index(path, _plan([[1]], 4, "another model"), 1)
    assert is_our_index(path)
    with pytest.raises(PlacementError, match="was made for another model"):
        _read(path, 1, 4)
    write_gpu_index(path, _plan([[2]], 4), 1)
    assert _read(path, 1, 4).layers[0].hot.tolist() == [2]
    assert [item.name for item in tmp_path.iterdir()] == ["m"]
    with pytest.raises(PlacementError, match="cannot write the GPU index"):
        write_gpu_index(tmp_path / "none" / "m", _plan([[2]], 4), 1)


def _i32(name: str, values: list[int]) -> TensorSpec:
    return name, (len(values),), "i32", np.array(values, np.int32).tobytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t[:1], "has 1 tensors, needs two"),
        (lambda t: [*t, _i32("x", [1])], "has 3 tensors"),
        (lambda t: t[::-1], r"expected the i32 vector blk\.0\.gpu_idx"),
        (lambda t: [t[0], _i32("blk.1.gpu_bucket", [1, 2])], r"vector blk\.0\.gpu_bucket"),
        (lambda t: [("blk.0.gpu_idx", (4,), "f32", bytes(16)), t[1]], "found the f32 tensor"),
        (lambda t: [("blk.0.gpu_idx", (2, 2), "i32", bytes(16)), t[1]], "with 2 dimensions"),
        (lambda t: [_i32("blk.0.gpu_idx", [0, 1, 1]), t[1]], "has 3 neurons"),
        (lambda t: [_i32("blk.0.gpu_idx", [0, 1, 2, 0]), t[1]], "does not list"),
        (lambda t: [t[0], _i32("blk.0.gpu_bucket", [2, 1])], "does not list"),
        (lambda t: [t[0], _i32("blk.0.gpu_bucket", [1])], "does not list"),
        (lambda t: [t[0], _i32("blk.0.gpu_bucket", [1, 2, 4])], "does not list"),
        (lambda t: [t[0], _i32("blk.0.gpu_bucket", [-3, 2])], "does not list"),
    ],
)
def test_tensors_that_contradict_the_model_or_each_other(
    tmp_path: Path, change: Callable[[list[TensorSpec]], list[TensorSpec]], message: str
) -> None:
    path = _foreign(tmp_path / "m", [[1, 2]], 4, change=change)
    with pytest.raises(PlacementError, match=message):
        _read(path, 1, 4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"magic": "GGUF"}, "is not a GPU index"),
        ({"metadata": {"general.architecture": "llama"}}, "is not a GPU index"),
        ({"metadata": {"split.vram_capacity": "much"}}, "expected an integer"),
        ({"metadata": {"powerinfer.plan.model_identity": "x"}}, "version' is missing"),
        (
            {"metadata": {"powerinfer.plan.model_identity": 3, "powerinfer.plan.version": 1}},
            "expected a string",
        ),
        (
            {
                "metadata": {
                    "powerinfer.plan.model_identity": IDENTITY,
                    "powerinfer.plan.version": 2,
                }
            },
            "of version 2",
        ),
    ],
)
def test_wrong_metadata(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = _foreign(tmp_path / "m", [[1, 2]], 4, **changes)
    with pytest.raises(PlacementError, match=message):
        _read(path, 1, 4)


def test_no_file_at_all(tmp_path: Path) -> None:
    with pytest.raises(PlacementError, match="is a folder"):
        _read(tmp_path, 1, 4)
    with pytest.raises(PlacementError, match="no such file"):
        _read(tmp_path / "none", 1, 4)
    (tmp_path / "text").write_text("hello")
    with pytest.raises(PlacementError, match="cannot read the GPU index"):
        _read(tmp_path / "text", 1, 4)
