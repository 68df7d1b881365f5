"""Writing: read back by ourselves and by the `gguf` package, atomic, and strict about sizes."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from powerinfer.errors import GGUFError, ShapeError, UnsupportedError
from powerinfer.gguf import (
    TensorSpec,
    ValueType,
    encode_tensor,
    model_identity,
    open_gguf,
    rewrite_metadata,
    write_gguf,
)

METADATA: dict[str, Any] = {
    "general.architecture": "llama",
    "an.int": 3,
    "a.negative": -3,
    "a.big": 2**63,
    "a.float": 0.25,
    "a.flag": True,
    "a.short": np.uint16(9),
    "a.double": np.float64(1e300),
    "some.texts": ["a", "", "🦙"],
    "some.ints": [1, -2],
    "some.flags": [True, False],
    "some.halves": np.array([0.5, 1.5], np.float32),
    "some.bytes": np.arange(3, dtype=np.uint8),
}
TYPES = {
    "general.architecture": "STRING",
    "an.int": "U32",
    "a.negative": "I32",
    "a.big": "U64",
    "a.float": "F32",
    "a.flag": "BOOL",
    "a.short": "U16",
    "a.double": "F64",
    "some.texts": "STRING",
    "some.ints": "I32",
    "some.flags": "BOOL",
    "some.halves": "F32",
    "some.bytes": "U8",
}


def matrix(shape: tuple[int, ...] = (3, 64)) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Seeded numbers."""
    return np.random.default_rng(5).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("magic", ["GGUF", "PWRI"])
@pytest.mark.parametrize("alignment", [32, 8, 4096])
def test_we_read_what_we_wrote(tmp_path: Path, magic: str, alignment: int) -> None:
    path = tmp_path / "m.gguf"
    tensors = [
        encode_tensor("f", matrix()),
        encode_tensor("q", matrix(), "q8_0"),
        ("ids", (3,), "i32", np.arange(3, dtype="<i4").view(np.uint8)),
        ("none", (0,), "i32", b""),
        encode_tensor("cube", matrix((2, 3, 32)), "f16"),
    ]
    write_gguf(path, METADATA, tensors, magic=magic, alignment=alignment)
    file = open_gguf(path)
    assert (file.magic, file.version) == (magic, 3)
    read = {key: file.metadata[key] for key in METADATA}
    for key, value in METADATA.items():
        assert np.array_equal(np.asarray(read[key]), np.asarray(value)), key
    assert {key: file.types[key].name for key in METADATA} == TYPES
    assert list(file.tensors) == ["f", "q", "ids", "none", "cube"]
    assert np.array_equal(file.tensors["f"].decode(), matrix())
    assert file.tensors["q"].data.tobytes() == np.asarray(tensors[1][3]).tobytes()
    assert file.tensors["ids"].numbers().tolist() == [0, 1, 2]
    assert file.tensors["cube"].shape == (2, 3, 32)
    assert all(t.data.ctypes.data % alignment == 0 for t in file.tensors.values() if t.num_bytes)
    assert not list(tmp_path.glob(".*"))


def test_the_gguf_package_reads_what_we_wrote(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, METADATA, [encode_tensor("q", matrix(), "q8_0")])
    reader = gguf.GGUFReader(path)
    for key, value in METADATA.items():
        assert np.array_equal(np.asarray(reader.fields[key].contents()), np.asarray(value)), key
    (tensor,) = reader.tensors
    assert (tensor.name, tensor.shape.tolist(), tensor.tensor_type.name) == ("q", [64, 3], "Q8_0")
    theirs = gguf.dequantize(tensor.data, tensor.tensor_type)
    assert np.array_equal(theirs, open_gguf(path).tensors["q"].decode())


def test_we_read_what_the_gguf_package_wrote(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_token_list(["a", "b"])
    writer.add_token_scores([0.5, -1.0])
    writer.add_tensor("w", matrix((4, 8)))
    writer.add_tensor("h", matrix((4, 8)).astype(np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = open_gguf(path)
    assert file.get_int("llama.block_count") == 2
    assert file.get_strings("tokenizer.ggml.tokens") == ["a", "b"]
    assert file.get_array("tokenizer.ggml.scores").tolist() == [0.5, -1.0]
    assert np.array_equal(file.tensors["w"].decode(), matrix((4, 8)))
    assert np.array_equal(file.tensors["h"].decode(), matrix((4, 8)).astype(np.float16))


def test_types_of_a_file_survive_a_copy(tmp_path: Path) -> None:
    path, copy = tmp_path / "m.gguf", tmp_path / "copy.gguf"
    metadata = {"small": np.uint8(1), "wide": np.int64(2), "exact": np.float64(0.1), "no": "x"}
    write_gguf(path, {**metadata, "texts": []}, [], types={"texts": ValueType.STRING})
    file = open_gguf(path)
    write_gguf(copy, file.metadata, [], types=file.types)
    assert copy.read_bytes() == path.read_bytes()
    assert open_gguf(copy).get_strings("texts") == []


def test_data_is_made_when_its_turn_comes(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    asked: list[str] = []

    def chunks() -> Iterator[bytes]:
        asked.append("b")
        assert list(tmp_path.glob(".m.gguf.*.part"))
        yield from (bytes([i]) * 16 for i in range(3))

    tensors: list[TensorSpec] = [
        ("a", (4,), "f32", iter([bytes(8), np.zeros(8, np.uint8)])),
        ("b", (12,), "f32", chunks),
    ]
    write_gguf(path, {}, tensors)
    assert asked == ["b"]
    assert open_gguf(path).tensors["b"].data.tolist() == [0] * 16 + [1] * 16 + [2] * 16


@pytest.mark.parametrize("size", [44, 52])
def test_a_failed_write_leaves_the_old_file(tmp_path: Path, size: int) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, {"k": 1}, [])
    before = path.read_bytes()
    with pytest.raises(ShapeError, match=rf"tensor 'a': got {size} bytes .* needs 48"):
        write_gguf(path, {}, [("a", (12,), "f32", iter([bytes(size)]))])

    def broken() -> Iterator[bytes]:
        yield bytes(16)
        raise RuntimeError("source failed")

    with pytest.raises(RuntimeError, match="source failed"):
        write_gguf(path, {}, [("a", (12,), "f32", broken)])
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match="cannot write: No such file or directory"):
        write_gguf(tmp_path / "absent" / "m.gguf", {}, [])
    (tmp_path / "folder").mkdir()
    with pytest.raises(GGUFError, match=r"folder: .*is not a regular file"):
        write_gguf(tmp_path / "folder", {}, [])
    assert [entry.name for entry in tmp_path.iterdir()] == ["folder"]


def test_what_is_no_file_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    (tmp_path / "to_pipe").symlink_to(pipe)
    for path in (pipe, tmp_path / "to_pipe"):
        with pytest.raises(GGUFError, match=f"{path.name}: .*is not a regular file"):
            write_gguf(path, {}, [])
    assert pipe.is_fifo()
    assert len(list(tmp_path.iterdir())) == 2


def test_a_link_stays_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link, target = tmp_path / "link.gguf", tmp_path / "elsewhere" / "real.gguf"
    link.symlink_to(target)
    for value in (1, 2):  # at first the target does not exist yet
        write_gguf(link, {"a.key": value}, [])
        assert open_gguf(target).metadata["a.key"] == value
    assert link.is_symlink()
    assert list(target.parent.iterdir()) == [target]
    around = tmp_path / "around"
    around.symlink_to(around)
    with pytest.raises(GGUFError, match="around: cannot write"):
        write_gguf(around, {}, [])


@pytest.mark.parametrize(
    "value", [None, {}, object(), b"bytes", 2**64, -(2**70), ["a", 1], [[1], [2]], 1j]
)
def test_values_without_a_metadata_type(tmp_path: Path, value: object) -> None:
    with pytest.raises(GGUFError, match="'k'"):
        write_gguf(tmp_path / "m.gguf", {"k": value}, [])


def test_a_value_that_does_not_fit_its_stored_type(tmp_path: Path) -> None:
    with pytest.raises(GGUFError, match="'k': 300 does not fit U8"):
        write_gguf(tmp_path / "m.gguf", {"k": 300}, [], types={"k": ValueType.U8})


@pytest.mark.parametrize(
    ("tensor", "error", "message"),
    [
        (("a", (2, 33), "q4_0", b""), ShapeError, r"q4_0 cannot have shape \(2, 33\)"),
        (("a", (1, 1, 1, 1, 1), "f32", bytes(4)), ShapeError, "cannot have shape"),
        (("a", (-1,), "f32", b""), ShapeError, "cannot have shape"),
        (("a", (2,), "f32", bytes(9)), ShapeError, "got 9 bytes of data, its shape needs 8"),
        (("a", (2,), "float", b""), GGUFError, "type 'float' cannot be stored"),
        (("", (1,), "f32", bytes(4)), GGUFError, "name '' is empty"),
    ],
)
def test_bad_tensors(tmp_path: Path, tensor: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        write_gguf(tmp_path / "m.gguf", {}, [tensor])


def test_names_options_and_containers(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    twice = [encode_tensor("a", matrix()), encode_tensor("a", matrix())]
    with pytest.raises(GGUFError, match="'a' is empty or used twice"):
        write_gguf(path, {}, twice)
    with pytest.raises(GGUFError, match="magic 'GGML'"):
        write_gguf(path, {}, [], magic="GGML")
    with pytest.raises(GGUFError, match="alignment 24"):
        write_gguf(path, {}, [], alignment=24)
    with pytest.raises(GGUFError, match="cannot be stored in a file with magic PWRI"):
        write_gguf(path, {}, [("a", (256,), "iq3_xxs", bytes(98))], magic="PWRI")
    with pytest.raises(GGUFError, match="as UTF-8"):
        write_gguf(path, {"k": "\ud800"}, [])
    with pytest.raises(UnsupportedError, match="'iq3_xxs' is not supported"):
        encode_tensor("a", matrix((1, 256)), "iq3_xxs")


def test_identity_is_of_the_content(tmp_path: Path) -> None:
    big = np.zeros((64, 1024), np.float32)

    def identity(name: str, values: Any, **metadata: Any) -> str:
        write_gguf(tmp_path / name, metadata, [encode_tensor("w", values)])
        return model_identity(open_gguf(tmp_path / name))

    first = identity("a.gguf", big)
    assert len(first) == 64
    assert identity("b.gguf", big) == first
    assert identity("c.gguf", big, key=1) != first
    for place in ((0, 0), (32, 0), (63, 1023)):
        changed = big.copy()
        changed[place] = 1
        assert identity("d.gguf", changed) != first


def test_rewriting_changes_keys_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    big = np.arange(64 * 1024, dtype=np.float32).reshape(64, 1024)
    metadata = {"a": np.int8(-3), "list": ["x", ""], "numbers": np.arange(3, dtype="<i8"), "t": "é"}
    write_gguf(path, metadata, [encode_tensor("w", big)], magic="PWRI", alignment=64)
    before = open_gguf(path)
    done: list[tuple[int, int]] = []
    rewrite_metadata(before, path, {"a": 7, "new": "text"}, lambda *both: done.append(both))
    after = open_gguf(path)
    assert (after.magic, after.metadata["general.alignment"]) == ("PWRI", 64)
    assert after.get_int("a") == 7
    assert after.get_str("new") == "text"
    assert after.types["numbers"] == before.types["numbers"]
    np.testing.assert_array_equal(after.tensors["w"].data, before.tensors["w"].data)
    assert done[-1] == (big.nbytes, big.nbytes)
    assert model_identity(after) != model_identity(before)
    assert sorted(tmp_path.iterdir()) == [path]


def test_a_calibration_inside_is_no_part_of_the_identity(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, {"a": 1, "list": ["x"]}, [encode_tensor("w", matrix((2, 64)))])
    file = open_gguf(path)
    identity = model_identity(file)
    rewrite_metadata(file, path, {"powerinfer.calibration": "{}"})
    assert model_identity(open_gguf(path)) == identity
    rewrite_metadata(file, path, {"list": ["x", ""]})
    assert model_identity(open_gguf(path)) != identity
