"""Importance matrices: the file, what is refused, and how they are measured."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command_line import assert_error, invoke, run_json
from powerinfer.convert.quantize.imatrix import (
    Importance,
    ImportanceMatrix,
    check_imatrix_target,
    read_imatrix,
    write_imatrix,
)
from powerinfer.errors import GGUFError
from powerinfer.gguf import Tensor, encode_tensor, open_gguf, write_gguf
from tiny_models import TINY_EXPERTS, TINY_MODELS, write_model

NAME = "blk.0.ffn_up.weight"
TEXT = "Once upon a time there was a little girl who liked to play in the garden. " * 8


def entry(num_matrices: int, columns: int) -> Importance:
    """Seeded sums; the first matrix has seen nothing."""
    sums = np.random.default_rng(1).uniform(0, 4, (num_matrices, columns)).astype(np.float32)
    counts = np.arange(num_matrices, dtype=np.float32)
    return Importance(sums * (counts[:, np.newaxis] > 0), counts)


def tensor(name: str, *shape: int) -> Tensor:
    """One of a model, without data."""
    return Tensor(name, shape, "f32", np.empty(0, np.uint8), Path("model"))


def matrix(**entries: Importance) -> ImportanceMatrix:
    """With these entries; underscores for dots in names of layers."""
    return ImportanceMatrix(entries, ("one", "two"), 3, 512)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "i.gguf"
    write_imatrix(path, matrix(a=entry(1, 6), b=entry(3, 4)))
    found = read_imatrix(path)
    assert (found.datasets, found.chunk_count, found.chunk_size) == (("one", "two"), 3, 512)
    assert found.path == path
    for name, wanted in {"a": entry(1, 6), "b": entry(3, 4)}.items():
        assert np.array_equal(found.entries[name].sums, wanted.sums)
        assert np.array_equal(found.entries[name].counts, wanted.counts)
    file = open_gguf(path)
    assert file.metadata["general.type"] == "imatrix"
    assert file.types["imatrix.chunk_count"].name == "U32"
    shapes = {name: tensor.shape for name, tensor in file.tensors.items()}
    assert shapes == {
        "a.in_sum2": (1, 6),
        "a.counts": (1, 1),
        "b.in_sum2": (3, 4),
        "b.counts": (3, 1),
    }


def test_means_are_ones_where_nothing_was_counted() -> None:
    means = entry(3, 4).means()
    assert (means[0] == 1).all()
    assert np.array_equal(means[2], entry(3, 4).sums[2] / np.float32(2))


def test_weights_of_tensors() -> None:
    """Experts have rows of their own, merged or in single tensors."""
    merged = "blk.0.ffn_up_exps.weight"
    found = matrix(**{NAME: entry(1, 6), merged: entry(3, 4)})
    assert found.of(tensor("blk.1.ffn_up.weight", 5, 6)) is None
    weights = found.of(tensor(NAME, 5, 6))
    assert weights is not None
    assert weights.shape == (1, 6)
    experts = found.of(tensor(merged, 3, 5, 4))
    single = found.of(tensor("blk.0.ffn_up.2.weight", 5, 4))
    assert experts is not None
    assert single is not None
    assert np.array_equal(single, experts[2:])
    # Each program may have counted all experts together.
    flat = Importance(entry(3, 4).sums.reshape(1, 12), np.ones(1, np.float32))
    flattened = matrix(**{merged: flat}).of(tensor(merged, 3, 5, 4))
    assert flattened is not None
    assert np.array_equal(flattened, entry(3, 4).sums)
    with pytest.raises(GGUFError, match=r"has 1 rows of 6 numbers, .* needs 1 of 8: "):
        found.of(tensor(NAME, 5, 8))
    with pytest.raises(GGUFError, match="another model"):
        found.of(tensor("blk.0.ffn_up.3.weight", 5, 4))


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"a.in_sum2": [[1.0]]}, "'a.counts' is missing"),
        ({"a.counts": [[1.0]]}, "'a.in_sum2' is missing"),
        ({"a.in_sum2": [[1.0, 2.0, 3.0]], "a.counts": [[1.0], [1.0]]}, "3 numbers for 2 counts"),
        ({"a.in_sum2": [[np.nan]], "a.counts": [[1.0]]}, "negative or not finite"),
        ({"a.in_sum2": [[-1.0]], "a.counts": [[1.0]]}, "negative or not finite"),
        ({"a.in_sum2": [[1.0]], "a.counts": [[np.inf]]}, "negative or not finite"),
        ({"token_embd.weight": [[1.0]]}, "is not an importance matrix"),
        ({}, "is not an importance matrix"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, tensors: dict[str, Any], said: str) -> None:
    specs = [encode_tensor(name, np.array(values, "f4")) for name, values in tensors.items()]
    write_gguf(tmp_path / "i.gguf", {}, specs)
    with pytest.raises(GGUFError, match=said):
        read_imatrix(tmp_path / "i.gguf")


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "i.dat"
    path.write_bytes(b"\1\0\0\0")
    with pytest.raises(GGUFError, match=r"an importance matrix is a GGUF file, as"):
        read_imatrix(path)
    specs = [encode_tensor("a.in_sum2", np.ones((1, 1), "f4"), "f16")]
    write_gguf(path, {}, [*specs, encode_tensor("a.counts", np.ones((1, 1), "f4"))])
    with pytest.raises(GGUFError, match="is f16; expected f32"):
        read_imatrix(path)
    write_gguf(path, {"general.type": "model"}, [])
    with pytest.raises(GGUFError, match="is not an importance matrix"):
        read_imatrix(path)


def test_only_importance_matrices_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "i.gguf"
    check_imatrix_target(path)
    path.touch()
    check_imatrix_target(path)
    write_imatrix(path, matrix(a=entry(1, 6)))
    check_imatrix_target(path)
    path.write_text("notes")
    with pytest.raises(GGUFError, match="already exists and is not an importance matrix"):
        check_imatrix_target(path)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A text of some hundred tokens."""
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


# What each tensor's entry is measured on is compared with llama.cpp's in tests/golden.
@pytest.mark.parametrize(
    "name", ["llama", "falcon", "opt", "llama-powerinfer", "mixtral-single", "granitemoe-shared"]
)
def test_every_matrix_in_a_layer_has_an_entry(tmp_path: Path, text: Path, name: str) -> None:
    model = write_model(tmp_path / "m.gguf", TINY_MODELS[name])
    report = run_json("imatrix", "-m", model, "-f", text, "-o", tmp_path / "i.gguf", "-c", "64")
    found, file = read_imatrix(tmp_path / "i.gguf"), open_gguf(model)
    wanted = [
        each
        for each in file.tensors.values()
        if each.name.startswith("blk.") and len(each.shape) > 1 and ".fc" not in each.name
    ]
    for each in wanted:
        plain = replace(each, name=each.name.replace("_t.weight", ".weight"))
        if plain.name == each.name:
            assert found.of(plain) is not None, plain.name
        else:
            assert found.entries[plain.name].sums.shape == (1, plain.shape[0])
    assert report["entries"] == len(found.entries)
    assert report["tokens"] == 64 * report["chunks"]
    assert (report["chunk_size"], report["datasets"]) == (64, ["text.txt"])
    largest = max(float(each.counts.max()) for each in found.entries.values())
    assert largest == report["tokens"]


def test_storing_down_by_rows_changes_nothing(tmp_path: Path, text: Path) -> None:
    """Nor what the experts are stored as, nor kernels beyond rounding."""
    entries = []
    for name, flags in (
        ("mixtral-drelu-predictors", ()),
        ("mixtral-drelu-predictors", ("--kernels", "reference")),
    ):
        model = write_model(tmp_path / "m.gguf", TINY_EXPERTS[name])
        path = tmp_path / "i.gguf"
        assert (
            invoke("imatrix", "-m", model, "-f", text, "-o", path, "-c", "64", *flags).exit_code
            == 0
        )
        entries.append(read_imatrix(path).entries)
    native, reference = entries
    assert native.keys() == reference.keys()
    for name, found in reference.items():
        np.testing.assert_allclose(native[name].sums, found.sums, rtol=1e-4, atol=1e-6)
        assert np.array_equal(native[name].counts, found.counts)


def test_chunks_take_the_first_windows(tmp_path: Path, text: Path) -> None:
    model = write_model(tmp_path / "m.gguf", TINY_MODELS["llama"])
    few = run_json(
        "imatrix", "-m", model, "-f", text, "-o", tmp_path / "a", "-c", "64", "--chunks", "2"
    )
    assert few["chunks"] == 2
    text.write_text(TEXT[: 2 * 64 + 20])
    run_json("imatrix", "-m", model, "-f", text, "-o", tmp_path / "b", "-c", "64")
    a, b = (read_imatrix(tmp_path / name).entries for name in "ab")
    assert all(np.array_equal(a[name].sums, b[name].sums) for name in b)


def test_mistakes_are_one_line(tmp_path: Path, text: Path) -> None:
    model = write_model(tmp_path / "m.gguf", TINY_MODELS["llama"])
    output: list[str | Path] = ["-o", tmp_path / "i.gguf"]
    assert_error(
        invoke("imatrix", "-m", model, "-f", tmp_path / "none", *output), "none: no such file"
    )
    short = tmp_path / "short.txt"
    short.write_text("ab")
    assert_error(
        invoke("imatrix", "-m", model, "-f", short, *output, "-c", "64"),
        "less than one window of 64",
    )
    assert_error(
        invoke("imatrix", "-m", model, "-f", text, "-o", text), "is not an importance matrix"
    )
    assert not (tmp_path / "i.gguf").exists()


@pytest.mark.parametrize("flag", ["--sparsity", "--device", "--gpu-index", "--max-ffn-error"])
def test_flags_that_could_change_nothing_are_refused(tmp_path: Path, text: Path, flag: str) -> None:
    out = tmp_path / "out.gguf"
    assert_error(invoke("imatrix", "-f", text, "-o", out, flag, "off"), f"no option {flag}")


def test_experts_that_no_token_chose_are_counted(tmp_path: Path, text: Path) -> None:
    model = write_model(tmp_path / "m.gguf", replace(TINY_MODELS["mixtral"], num_experts=64))
    flags: list[str | Path] = ["-o", tmp_path / "i.gguf", "-c", "4", "--chunks", "1"]
    result = invoke("imatrix", "-m", model, "-f", text, *flags)
    assert result.exit_code == 0, result.output
    assert "of the experts; use more text" in result.stderr
    found = read_imatrix(tmp_path / "i.gguf").entries["blk.0.ffn_up_exps.weight"]
    assert found.counts.sum() == 4 * 2
    assert (found.means()[found.counts == 0] == 1).all()
