"""PowerInfer's `activation` folder: files of `torch.save`, of which nothing is executed."""

import importlib
import os
import resource
import struct
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import torch_files as tf
from powerinfer.errors import PlacementError
from powerinfer.placement.activation_folder import (
    find_activation_folder,
    read_activation_file,
    read_activation_folder,
)

pytestmark = pytest.mark.needs("torch")

FOUR = struct.pack("<4f", 0, 1, 2.5, 3)


@pytest.fixture(scope="module", autouse=True)
def torch() -> ModuleType:
    return importlib.import_module("torch")


def _read(tmp_path: Path, data: bytes, length: int = 4) -> list[float]:
    path = tmp_path / "activation_0.pt"
    path.write_bytes(data)
    found = read_activation_file(path, length)
    assert found.dtype == np.float64
    return list(found)


def test_files_that_torch_wrote(tmp_path: Path) -> None:
    assert _read(tmp_path, tf.ARCHIVE) == list(tf.ARCHIVE_VALUES)
    assert _read(tmp_path, tf.LEGACY) == list(tf.LEGACY_VALUES)


@pytest.mark.parametrize("folder", ["archive", "activation_0", "x y"])
def test_archives_of_any_name(tmp_path: Path, folder: str) -> None:
    data = tf.archive(tf.tensor(), FOUR, folder=folder, byteorder=None)
    assert _read(tmp_path, data) == [0, 1, 2.5, 3]


def test_a_compressed_archive(tmp_path: Path) -> None:
    with pytest.raises(PlacementError, match=r"compressed, as torch\.save never does"):
        _read(tmp_path, tf.archive(tf.tensor(), FOUR, method=zipfile.ZIP_DEFLATED))


def test_the_byte_order_counts(tmp_path: Path) -> None:
    big = tf.archive(tf.tensor(), struct.pack(">4f", 0, 1, 2.5, 3), byteorder="big")
    assert _read(tmp_path, big) == [0, 1, 2.5, 3]


def test_a_part_of_a_larger_storage(tmp_path: Path) -> None:
    pickle = tf.tensor(tf.storage(num_elements=9), tf.integer(1), strides=tf.numbers(2))
    data = tf.archive(pickle, struct.pack("<9f", *range(9)))
    assert _read(tmp_path, data) == [1, 3, 5, 7]


def test_a_tensor_without_strides_is_taken_in_one_piece(tmp_path: Path) -> None:
    assert _read(tmp_path, tf.archive(tf.tensor(strides=b"N"), FOUR)) == [0, 1, 2.5, 3]


@pytest.mark.parametrize("is_archive", [True, False])
@pytest.mark.parametrize(
    "dtype",
    [
        "float64",
        "float32",
        "float16",
        "bfloat16",
        "int64",
        "int32",
        "int16",
        "int8",
        "uint8",
        "bool",
        "uint16",
        "uint32",
    ],
)
def test_every_type_that_torch_writes(
    torch: ModuleType, tmp_path: Path, dtype: str, is_archive: bool
) -> None:
    if dtype in ("uint16", "uint32") and not is_archive:
        return  # torch writes them, but does not read them
    tensor = torch.tensor([0, 1, 1, 0]).to(getattr(torch, dtype))
    if dtype not in ("bool", "uint8"):
        tensor = tensor * 100
    path = tmp_path / "a.pt"
    torch.save(tensor, path, _use_new_zipfile_serialization=is_archive)
    assert list(read_activation_file(path, 4)) == tensor.to(torch.float64).tolist()


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("is_archive", [True, False])
def test_parameters_slices_and_protocols(
    torch: ModuleType, tmp_path: Path, protocol: int, is_archive: bool
) -> None:
    path = tmp_path / "a.pt"
    whole = torch.arange(12, dtype=torch.float32)
    for tensor in (whole[5:8], whole[1::4], torch.nn.Parameter(whole[:3]), whole[2:3].expand(3)):
        torch.save(
            tensor, path, pickle_protocol=protocol, _use_new_zipfile_serialization=is_archive
        )
        assert list(read_activation_file(path, 3)) == tensor.tolist()


@pytest.mark.parametrize("protocol", [4, 5])
def test_protocols_that_torch_reads_only_where_it_trusts_the_file(
    torch: ModuleType, tmp_path: Path, protocol: int
) -> None:
    path = tmp_path / "a.pt"
    torch.save(torch.ones(4), path, pickle_protocol=protocol)
    with pytest.raises(PlacementError, match=r"a\.pt: .*: torch refuses it"):
        read_activation_file(path, 4)


def test_other_things_that_torch_saves(torch: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    wrong = (
        [1, 2],
        {"a": torch.ones(4)},
        torch.ones(4, 1),
        torch.tensor(4.0),
        torch.ones(5),
        torch.ones(4, dtype=torch.complex64),
        torch.ones(4).to_sparse(),
        torch.nn.Linear(2, 2).state_dict(),
    )
    for value in wrong:
        torch.save(value, path)
        with pytest.raises(PlacementError, match=r"a\.pt: expected a tensor of 4 numbers"):
            read_activation_file(path, 4)


HUGE = tf.integer(2**62)
WRONG = {
    "no file of torch": b"hello",
    "empty": b"",
    "a bare zip": b"PK\x03\x04",
    "calls os.system": b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00id\x85R.",
    "an archive that calls os.system": tf.archive(
        b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00id\x85R.", FOUR
    ),
    "a storage larger than its data": tf.archive(tf.tensor(tf.storage(num_elements=5)), FOUR),
    "a storage far larger than its data, of the other byte order": tf.archive(
        tf.tensor(tf.storage(num_elements=1 << 20)), FOUR, byteorder="big"
    ),
    "a storage smaller than its data": tf.archive(
        tf.tensor(tf.storage(num_elements=4)), FOUR + FOUR
    ),
    "a huge shape": tf.archive(tf.tensor(shape=HUGE + b"\x85"), FOUR),
    "a huge storage": tf.archive(tf.tensor(tf.storage(num_elements=2**62)), FOUR),
    "a negative shape": tf.archive(tf.tensor(shape=tf.numbers(-4)), FOUR),
    "a shape of truth values": tf.archive(tf.tensor(shape=b"\x88\x85"), FOUR),
    "a start beyond the end": tf.archive(tf.tensor(start=HUGE), FOUR),
    "a negative start": tf.archive(tf.tensor(start=tf.integer(-1)), FOUR),
    "a stride beyond the end": tf.archive(tf.tensor(strides=tf.numbers(2)), FOUR),
    "a negative stride": tf.archive(tf.tensor(strides=tf.numbers(-1)), FOUR),
    "two strides": tf.archive(tf.tensor(strides=tf.numbers(1, 1)), FOUR),
    "too little data": tf.archive(tf.tensor(), FOUR[:-1]),
    "too much data": tf.archive(tf.tensor(), FOUR + b"\0"),
    "another function": tf.archive(tf.tensor(function=tf.name("builtins", "eval")), FOUR),
    "an unknown type": tf.archive(tf.tensor(tf.storage("QInt8Storage")), FOUR),
    "a type that is no name": tf.archive(
        tf.tensor(b"(" + b"".join(map(tf.text, ["storage", "x", "0", "cpu"])) + b"K\x04tQ"), FOUR
    ),
    "an untyped storage without type": tf.archive(tf.tensor(tf.storage("UntypedStorage")), FOUR),
    "no storage": tf.archive(tf.tensor(b"N"), FOUR),
    "a key that leads elsewhere": tf.archive(tf.tensor(tf.storage(key="../../0")), FOUR),
    "a strange byte order": tf.archive(tf.tensor(), FOUR, byteorder="middle"),
    "an integer without end": tf.archive(b"\x80\x02\x8b\xff\xff\xff\x7f", FOUR),
    "a text without end": tf.archive(b"\x80\x02X\xff\xff\xff\xff", FOUR),
    "a memo of four billion": tf.archive(b"\x80\x02Nr\xff\xff\xff\xff.", FOUR),
    "a pickle of megabytes": tf.archive(b"N" * (1 << 20), FOUR),
    "a compressed pickle of megabytes": tf.archive(
        b"N" * (1 << 20), FOUR, method=zipfile.ZIP_DEFLATED
    ),
    "an old file of megabytes": tf.LEGACY[:-24] + b"N" * (1 << 20),
    "an old file with a tail": tf.LEGACY + b"\0",
    "an old file that leaves its storage out": tf.LEGACY.replace(
        b"]q\x00X\x0e\x00\x00\x0093993995905136q\x01a.", b"]q\x00."
    ),
    "a bomb": tf.archive(
        tf.tensor(tf.storage(num_elements=1 << 25)),
        bytes(1 << 27),
        method=zipfile.ZIP_DEFLATED,
    ),
    "deep nesting": tf.archive(b"\x80\x02N" + b"\x85" * 60000 + b".", FOUR),
    "deep nesting as a key": tf.archive(
        tf.tensor(b"(" + tf.text("storage") + b"N" + b"\x85" * 60000 + b"NNNtQ"), FOUR
    ),
    "marks without end": tf.archive(b"\x80\x02" + b"(" * 60000, FOUR),
    "nothing to stop with": tf.archive(b"\x80\x02.", FOUR),
    "an old file cut off": tf.LEGACY[:-1],
    "an old file with another key": tf.LEGACY.replace(
        b"]q\x00X\x0e\x00\x00\x009", b"]q\x00X\x0e\x00\x00\x001"
    ),
    "an old file of another version": tf.LEGACY.replace(
        b"\x80\x02M\xe9\x03.", b"\x80\x02M\xe8\x03."
    ),
    "an old file with a huge count": tf.LEGACY.replace(
        b"a.\x04\0\0\0\0\0\0\0", b"a." + b"\xff" * 8
    ),
}


@pytest.mark.parametrize("data", WRONG.values(), ids=WRONG.keys())
def test_hostile_files_are_one_clear_error(
    tmp_path: Path, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def called(_: object) -> int:
        raise AssertionError("the file was executed")

    monkeypatch.setattr(os, "system", called)
    with pytest.raises(
        PlacementError, match=r"activation_0\.pt: expected a tensor of 4 numbers"
    ) as caught:
        _read(tmp_path, data)
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    assert "weights_only" not in message


def test_attributes_that_hide_what_a_tensor_does(torch: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    parameter = torch.nn.Parameter(torch.ones(4))
    parameter.detach = "nothing to call"
    torch.save(parameter, path)
    with pytest.raises(
        PlacementError, match=r"a\.pt: .*: torch refuses it: it is damaged, holds more"
    ):
        read_activation_file(path, 4)


@pytest.mark.parametrize("is_archive", [True, False])
def test_memory_that_a_file_cannot_justify(tmp_path: Path, *, is_archive: bool) -> None:
    """Such a file asks for a gigabyte before the tensor that it holds."""
    ballast = tf.name("__builtin__", "bytearray") + b"(" + tf.integer(1 << 30) + b"tR0"
    older = tf.LEGACY.replace(b"\x80\x02ctorch._utils", b"\x80\x02" + ballast + b"ctorch._utils")
    archive = tf.archive(b"\x80\x02" + ballast + tf.tensor()[2:], FOUR)
    data = archive if is_archive else older
    assert len(data) < 2048
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(PlacementError, match="holds more than a tensor"):
        _read(tmp_path, data)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 19  # KiB


def test_a_storage_that_is_larger_than_the_file(tmp_path: Path) -> None:
    with pytest.raises(PlacementError, match="another size than the archive"):
        _read(tmp_path, tf.archive(tf.tensor(tf.storage(num_elements=1 << 28)), FOUR))
    with pytest.raises(PlacementError, match="not in the file"):
        _read(tmp_path, tf.LEGACY.replace(b"K\x04Ntq", tf.integer(1 << 28) + b"Ntq"))


def test_where_torch_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(PlacementError, match=r"needs torch.*scripts/setup cuda .*\[cuda\]"):
        _read(tmp_path, tf.ARCHIVE)


def test_an_archive_of_very_many_entries(tmp_path: Path) -> None:
    with pytest.raises(PlacementError, match="more than 1000 entries"):
        _read(tmp_path, b"PK\x03\x04" + b"PK\x01\x02" * 2000)


def test_an_archive_of_two_pickles(tmp_path: Path) -> None:
    path = tmp_path / "two.pt"
    path.write_bytes(tf.archive(tf.tensor(), FOUR))
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("other/data.pkl", tf.tensor())
    with pytest.raises(PlacementError, match=r"2 files data\.pkl and 1 storages"):
        read_activation_file(path, 4)


def test_what_is_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.pt")
    with pytest.raises(PlacementError, match="not a regular file"):
        read_activation_file(tmp_path / "pipe.pt", 4)
    with pytest.raises(PlacementError, match="No such file"):
        read_activation_file(tmp_path / "none.pt", 4)


def _write_folder(folder: Path, layers: list[list[float]]) -> Path:
    folder.mkdir(exist_ok=True)
    for number, values in enumerate(layers):
        pickle = tf.tensor(tf.storage(num_elements=len(values)), shape=tf.numbers(len(values)))
        data = tf.archive(pickle, np.array(values, "<f4").tobytes())
        (folder / f"activation_{number}.pt").write_bytes(data)
    return folder


def test_layers_are_sorted_as_numbers(tmp_path: Path) -> None:
    layers = [[float(number), 12.0] for number in range(12)]
    folder = _write_folder(tmp_path / "activation", layers)
    (folder / "README.md").write_text("other files do not matter")
    stats = read_activation_folder(folder, num_layers=12, num_neurons=2)
    assert np.allclose(stats.frequency[:, 0] * 12, np.arange(12))
    assert stats.num_tokens == 0
    assert str(folder) in stats.source
    assert find_activation_folder(tmp_path / "model.gguf") == folder
    assert find_activation_folder(tmp_path / "elsewhere" / "model.gguf") is None


def test_counts_and_frequencies(tmp_path: Path) -> None:
    counts = _write_folder(tmp_path / "counts", [[0, 50], [200, 100]])
    stats = read_activation_folder(counts, num_layers=2, num_neurons=2)
    assert stats.frequency.tolist() == [[0, 0.25], [1, 0.5]]
    shares = _write_folder(tmp_path / "shares", [[0, 0.25], [0.5, 0.125]])
    stats = read_activation_folder(shares, num_layers=2, num_neurons=2)
    assert stats.frequency.tolist() == [[0, 0.25], [0.5, 0.125]]


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -1.0])
def test_what_no_count_is(tmp_path: Path, wrong: float) -> None:
    folder = _write_folder(tmp_path / "activation", [[1, 2], [wrong, 2]])
    with pytest.raises(
        PlacementError, match=r"activation_1\.pt: counts are negative or not finite"
    ):
        read_activation_folder(folder, num_layers=2, num_neurons=2)


def test_folders_of_other_models(tmp_path: Path) -> None:
    folder = _write_folder(tmp_path / "activation", [[1, 2]] * 3)
    with pytest.raises(PlacementError, match=r"there is an activation_2\.pt"):
        read_activation_folder(folder, num_layers=2, num_neurons=2)
    with pytest.raises(PlacementError, match=r"activation_3\.pt is missing"):
        read_activation_folder(folder, num_layers=4, num_neurons=2)
    with pytest.raises(PlacementError, match=r"shape is 2"):
        read_activation_folder(folder, num_layers=3, num_neurons=3)
    (folder / "activation_1.pt").unlink()
    with pytest.raises(PlacementError, match=r"activation_1\.pt is missing"):
        read_activation_folder(folder, num_layers=3, num_neurons=2)
    silent = _write_folder(tmp_path / "silent", [[0, 0]])
    with pytest.raises(PlacementError, match="all counts in these files are 0"):
        read_activation_folder(silent, num_layers=1, num_neurons=2)
    with pytest.raises(PlacementError, match="cannot list"):
        read_activation_folder(tmp_path / "none", num_layers=1, num_neurons=2)
