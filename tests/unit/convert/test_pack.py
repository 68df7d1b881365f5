"""Packing: what is transposed, what stays, how large the error is, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from powerinfer.convert import layout as layouts
from powerinfer.convert.pack import pack
from powerinfer.errors import GGUFError, NumericsError, UnsupportedError
from powerinfer.gguf import encode_tensor, open_gguf, write_gguf
from powerinfer.quant import get_format
from tiny_models import TINY_MODELS, wide, write_model

DOWN, DOWN_T = "blk.0.ffn_down.weight", "blk.0.ffn_down_t.weight"


def numbers(*shape: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Seeded numbers."""
    return np.random.default_rng(2).standard_normal(shape).astype(np.float32)


def write(path: Path, format_name: str, *shape: int, **metadata: Any) -> Path:
    """Write a file with one down projection and one other tensor."""
    fmt = get_format(format_name)
    if fmt.can_encode:
        down = encode_tensor(DOWN, numbers(*shape), format_name)
    else:
        size = shape[0] * fmt.num_bytes(shape[1])
        data = np.random.default_rng(2).integers(0, 256, (size,), np.uint8)
        blocks = data.reshape(-1, fmt.block_bytes)
        for start in (0, 2) if format_name != "q6_k" else (208,):
            scales = np.full((len(blocks), 1), 0.01, "<f2")
            blocks[:, start : start + 2] = scales.view(np.uint8)
        down = (DOWN, shape, format_name, data)
    other = encode_tensor("blk.0.ffn_up.weight", numbers(shape[1], shape[0]), "f16")
    write_gguf(path, metadata, [down, other])
    return path


@pytest.mark.parametrize("format_name", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("shape", [(8, 12), (3, 1030)])
def test_plain_numbers_are_moved_bit_for_bit(
    tmp_path: Path, format_name: str, shape: tuple[int, int]
) -> None:
    source = open_gguf(write(tmp_path / "m.gguf", format_name, *shape))
    report = pack(source, tmp_path / "p.gguf")
    packed = open_gguf(tmp_path / "p.gguf")
    assert list(packed.tensors) == [DOWN_T, "blk.0.ffn_up.weight"]
    tensor = packed.tensors[DOWN_T]
    assert (tensor.shape, tensor.format) == (shape[::-1], format_name)
    assert np.array_equal(tensor.decode(), source.tensors[DOWN].decode().T)
    untouched = "blk.0.ffn_up.weight"
    assert packed.tensors[untouched].data.tobytes() == source.tensors[untouched].data.tobytes()
    assert report.is_exact
    assert report.largest_error == 0
    assert report.num_bytes == (tmp_path / "p.gguf").stat().st_size


@pytest.mark.parametrize(
    ("format_name", "shape", "stored_as", "error"),
    [
        ("q8_0", (64, 96), "q8_0", 0.01),
        ("q4_0", (64, 1056), "q4_0", 0.15),
        ("mxfp4", (96, 64), "mxfp4", 0.2),
        ("q4_k", (64, 512), "q8_0", 0.01),
        ("q6_k", (32, 256), "q8_0", 0.01),
        ("q8_0", (48, 64), "f16", 1e-3),
    ],
)
def test_blocks_are_encoded_again(
    tmp_path: Path, format_name: str, shape: tuple[int, int], stored_as: str, error: float
) -> None:
    source = open_gguf(write(tmp_path / "m.gguf", format_name, *shape))
    report = pack(source, tmp_path / "p.gguf")
    tensor = open_gguf(tmp_path / "p.gguf").tensors[DOWN_T]
    assert (tensor.shape, tensor.format) == (shape[::-1], stored_as)
    before = source.tensors[DOWN].decode().T.astype(np.float64)
    after = tensor.decode().astype(np.float64)
    expected = np.linalg.norm(after - before) / np.linalg.norm(before)
    assert 0 < report.largest_error < error
    assert report.largest_error == pytest.approx(expected, rel=1e-6)
    assert not report.is_exact
    assert report.packed[0].source_format == format_name


def test_container_metadata_and_bias_are_kept(tmp_path: Path) -> None:
    metadata = {"general.architecture": "opt", "a.short": np.uint16(3), "split.no": 0}
    tensors = [
        encode_tensor(DOWN, numbers(4, 6)),
        encode_tensor("blk.0.ffn_down.bias", numbers(4)),
        encode_tensor("blk.0.ffn_up.weight", numbers(6, 4)),
    ]
    write_gguf(tmp_path / "m.gguf", metadata, tensors, magic="PWRI", alignment=128)
    source = open_gguf(tmp_path / "m.gguf")
    pack(source, tmp_path / "p.gguf", metadata={"powerinfer.ffn_activation": "relu"})
    packed = open_gguf(tmp_path / "p.gguf")
    assert packed.magic == "PWRI"
    assert packed.metadata == {
        "general.architecture": "opt",
        "a.short": 3,
        "general.alignment": 128,
        "powerinfer.layout": "rows",
        "powerinfer.ffn_activation": "relu",
    }
    assert packed.types["a.short"].name == "U16"
    names = [DOWN_T, "blk.0.ffn_down_t.bias", "blk.0.ffn_up.weight"]
    assert list(packed.tensors) == names
    assert packed.tensors[names[1]].data.tobytes() == source.tensors[tensors[1][0]].data.tobytes()


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    source = open_gguf(write(tmp_path / "m.gguf", "f32", 4, 1200))
    reports: list[tuple[int, int]] = []
    pack(source, tmp_path / "p.gguf", progress=lambda done, total: reports.append((done, total)))
    total = 4 * 1200 * (4 + 2)
    assert reports[-1] == (total, total)
    assert [done for done, _ in reports] == sorted({done for done, _ in reports})


@pytest.mark.parametrize("name", ["m.gguf", "link.gguf", "hard.gguf"])
def test_the_model_itself_is_never_overwritten(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / "m.gguf", "f32", 4, 4)
    (tmp_path / "link.gguf").symlink_to(path)
    (tmp_path / "hard.gguf").hardlink_to(path)
    before = path.read_bytes()
    with pytest.raises(GGUFError, match="is the model being read"):
        pack(open_gguf(path), tmp_path / name)
    assert path.read_bytes() == before


def test_only_packed_and_empty_files_are_replaced(tmp_path: Path) -> None:
    source = open_gguf(write(tmp_path / "m.gguf", "f32", 4, 4))
    another = write(tmp_path / "other.gguf", "f32", 4, 4)
    notes = tmp_path / "notes.txt"
    notes.write_text("notes")
    (tmp_path / "link.gguf").symlink_to(another)
    for path in (another, notes, tmp_path / "link.gguf"):
        before = path.read_bytes()
        with pytest.raises(
            GGUFError, match="already exists and was not written by pack: remove it"
        ):
            pack(source, path)
        assert path.read_bytes() == before
    with pytest.raises(GGUFError, match="not a regular file"):
        pack(source, tmp_path)
    (tmp_path / "p.gguf").touch()
    for name in ("one", "two"):
        pack(source, tmp_path / "p.gguf", metadata={"general.name": name})
        assert open_gguf(tmp_path / "p.gguf").get_str("general.name") == name


def test_what_cannot_be_packed(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", "f32", 4, 4)
    with pytest.raises(UnsupportedError, match=r"layout 'row' .*Did you mean 'rows'"):
        pack(open_gguf(path), tmp_path / "p.gguf", layout="row")
    pack(open_gguf(path), tmp_path / "p.gguf")
    with pytest.raises(GGUFError, match=r"no tensors for layout rows to change .*: rows"):
        pack(open_gguf(tmp_path / "p.gguf"), tmp_path / "again.gguf")
    write_gguf(path, {}, [(DOWN, (1, 256), "iq2_xxs", bytes(66))])
    with pytest.raises(UnsupportedError, match="iq2_xxs"):
        pack(open_gguf(path), tmp_path / "again.gguf")
    block = np.full((1, 2), np.inf, "<f2").view(np.uint8)[:, :2]
    data = np.concatenate([block.reshape(-1), np.ones(32, np.uint8)])
    write_gguf(path, {}, [(DOWN, (1, 32), "q8_0", data)])
    with pytest.raises(NumericsError, match="holds numbers that f16 cannot"):
        pack(open_gguf(path), tmp_path / "again.gguf")
    write_gguf(path, {}, [(DOWN, (32, 32), "q8_0", np.tile(data, 32))])
    with pytest.raises(NumericsError, match=r"m\.gguf: tensor blk\.0\.ffn_down\.weight: .*inf"):
        pack(open_gguf(path), tmp_path / "again.gguf")
    assert not (tmp_path / "again.gguf").exists()


def test_a_packed_model_is_what_a_transposed_one_is(tmp_path: Path) -> None:
    """The file made by packing equals the one that stores the same weights transposed."""
    model = wide(TINY_MODELS["llama"])
    path = write_model(tmp_path / "m.gguf", model)
    pack(open_gguf(path), tmp_path / "p.gguf")
    plain, packed = open_gguf(path), open_gguf(tmp_path / "p.gguf")
    for layer in range(model.num_layers):
        before = plain.tensors[f"blk.{layer}.ffn_down.weight"]
        after = packed.tensors[f"blk.{layer}.ffn_down_t.weight"]
        assert after.shape == (model.intermediate_size, model.hidden_size)
        assert np.array_equal(after.decode().T, before.decode())


def test_every_layout_file_keeps_its_contract() -> None:
    assert layouts.layouts()
    for name in layouts.layouts():
        assert layouts.get_layout(name).name == name


def test_error_of_nothing_and_of_zeros() -> None:
    error = layouts.ErrorSum()
    assert error.relative == 0
    error.add(np.zeros(2, np.float32), np.ones(2, np.float32))
    assert error.relative == np.inf
