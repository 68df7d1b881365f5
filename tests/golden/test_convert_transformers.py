"""Converted checkpoints against the stored logits of transformers, for every architecture."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from backends import BACKENDS, using
from converted_cases import save_as_transformers, save_without_torch
from powerinfer.convert import planning
from powerinfer.convert.convert import convert
from powerinfer.gguf import GGUFFile, open_gguf
from powerinfer.models import load_model
from powerinfer.ops.backend import Backend, as_backend
from powerinfer.ops.reference.ops import ReferenceOps
from tolerances import assert_close
from transformers_cases import CASES, FOLDER, Case

FloatArray = npt.NDArray[np.float32]

# Tensors of several dimensions that are always F32.
KEPT = (
    "ssm_norm",
    "ssm_a",
    "ssm_d",
    "bias",
    "gate_inp",
    "shortconv.conv",
    "ssm_alpha",
    "ssm_beta",
    "ssm_conv1d",
)

# The longest prompts differ from the others in nothing that is converted.
CONVERTED = [name for name in CASES if not name.endswith("600-tokens")]


@pytest.fixture(scope="module")
def goldens() -> dict[str, FloatArray]:
    with np.load(FOLDER / "logits.npz") as file:
        return dict(file)


@pytest.fixture(autouse=True)
def _without_tokenizers(monkeypatch: pytest.MonkeyPatch) -> None:
    """These checkpoints have none."""
    monkeypatch.setattr(planning, "read_tokenizer", lambda _folder, _num_rows: {})
    monkeypatch.setattr(planning, "check_tokenizer", lambda _folder, _metadata: None)


def logits(file: GGUFFile, case: Case, ops: Backend) -> FloatArray:
    model = load_model(file, ops)
    cache = model.new_cache()
    return model.forward(cache.batch([(0, case.token_ids, 0)], [True]), cache)[case.positions]


# test_architectures_transformers.py runs every one on every backend.
@pytest.mark.each_value
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CONVERTED)
def test_logits_of_a_checkpoint_of_version_4(
    name: str, backend: str, goldens: dict[str, FloatArray], tmp_path: Path
) -> None:
    case = CASES[name]
    folder = save_without_torch(tmp_path, case, shards=2)
    convert(folder, tmp_path / "m.gguf")
    with using(backend) as ops:
        got = logits(open_gguf(tmp_path / "m.gguf"), case, ops)
    assert_close(got, goldens[name], "transformers")


@pytest.mark.needs("torch", "transformers")
@pytest.mark.parametrize("name", CONVERTED)
def test_logits_of_a_checkpoint_that_transformers_saves(
    name: str, goldens: dict[str, FloatArray], tmp_path: Path
) -> None:
    """Sharded or not, plain or not."""
    case = CASES[name]
    is_sharded = len(name) % 2 == 0
    options = {"max_shard_size": "40KB"} if is_sharded else {}
    folder = save_as_transformers(tmp_path, case, **options)
    assert (folder / "model.safetensors.index.json").exists() == is_sharded
    report = convert(folder, tmp_path / "m.gguf", is_plain=True)
    assert (report.architecture, report.outtype) == (case.architecture, "f32")
    file = open_gguf(tmp_path / "m.gguf")
    assert not any("_t." in tensor for tensor in file.tensors)
    assert_close(logits(file, case, as_backend(ReferenceOps())), goldens[name], "transformers")


@pytest.mark.parametrize("name", CONVERTED)
def test_bf16_is_copied(name: str, tmp_path: Path) -> None:
    """To the bit, so that a file of F32 made from the same checkpoint computes the same."""
    case = CASES[name]
    folder = save_without_torch(tmp_path, case, is_bf16=True)
    files = []
    for outtype in ("auto", "f32"):
        report = convert(folder, tmp_path / f"{outtype}.gguf", outtype=outtype)
        assert report.outtype == ("bf16" if outtype == "auto" else "f32")
        files.append(open_gguf(report.path))
    short, wide = files
    assert {tensor.format for tensor in wide.tensors.values()} == {"f32"}
    for key, tensor in short.tensors.items():
        is_matrix = len(tensor.shape) > 1 and not any(part in key for part in KEPT)
        assert tensor.format == ("bf16" if is_matrix else "f32")
        np.testing.assert_array_equal(tensor.decode(), wide.tensors[key].decode())


@pytest.fixture
def relu_models(tmp_path: Path) -> Iterator[tuple[Case, GGUFFile, GGUFFile]]:
    """Each ReLU model in both forms."""
    return (
        (
            case,
            open_gguf(convert(folder, tmp_path / f"{name}.gguf").path),
            open_gguf(convert(folder, tmp_path / f"{name}-plain.gguf", is_plain=True).path),
        )
        for name, case in CASES.items()
        if case.is_sparse and (folder := save_without_torch(tmp_path / name, case))
    )


def test_only_relu_models_have_neurons_as_rows_of_down(
    relu_models: Iterator[tuple[Case, GGUFFile, GGUFFile]], tmp_path: Path
) -> None:
    for _, file, plain in relu_models:
        turned = [name for name in file.tensors if "ffn_down" in name]
        assert turned and all("_t." in name for name in turned)
        assert [name.replace("_t.", ".") for name in file.tensors] == list(plain.tensors)
        for name in turned:
            values = file.tensors[name].decode()
            expected = plain.tensors[name.replace("_t.", ".")].decode()
            is_bias = name.endswith("bias")
            np.testing.assert_array_equal(
                values, expected if is_bias else expected.swapaxes(-1, -2)
            )
    folder = save_without_torch(tmp_path / "silu", CASES["mixtral"])
    file = open_gguf(convert(folder, tmp_path / "m.gguf").path)
    assert not any("_t." in name for name in file.tensors)
