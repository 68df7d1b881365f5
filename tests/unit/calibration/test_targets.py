"""What may be calibrated and where the result may be written, case by case."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from powerinfer.calibration import targets
from powerinfer.calibration.targets import check_activation, check_target
from powerinfer.errors import CalibrationError, UnsupportedError
from powerinfer.gguf import GGUFFile, keys, open_gguf, rewrite_metadata
from powerinfer.predictors import LayerChoice
from powerinfer.predictors.calibration import DEFAULT_DIAL, Calibration, LayerCalibration
from powerinfer.predictors.calibration_json import CALIBRATION
from tiny_models import TINY_MODELS, write_model


@pytest.fixture
def relu(tmp_path: Path) -> GGUFFile:
    return open_gguf(write_model(tmp_path / "relu.gguf", TINY_MODELS["llama-relu"]))


@pytest.fixture
def silu(tmp_path: Path) -> GGUFFile:
    return open_gguf(write_model(tmp_path / "silu.gguf", TINY_MODELS["llama"]))


@pytest.fixture
def calibration(tmp_path: Path) -> Path:
    numbers = np.ones(2, np.float32)
    layer = LayerCalibration(np.ones(3, np.int64), numbers, numbers, {}, LayerChoice("exact"))
    found = Calibration("0123456789abcdef" * 4, "relu", "text", 10, DEFAULT_DIAL, (layer,))
    path = tmp_path / "some.calibration.json"
    path.write_text(CALIBRATION.to_json(found))
    return path


def _refused(message: str, file: GGUFFile, output: Path | None, *, is_inside: bool) -> None:
    with pytest.raises(CalibrationError, match=message):
        check_target(file, output, is_inside=is_inside)


# What is calibrated


def test_only_activations_that_reach_zero_can_be_calibrated(relu: GGUFFile, silu: GGUFFile) -> None:
    check_activation(relu, None)
    with pytest.raises(UnsupportedError, match=r"ReLU\s+family, and this model runs silu"):
        check_activation(silu, None)


def test_the_caller_knows_the_activation_better_than_the_file(
    relu: GGUFFile, silu: GGUFFile
) -> None:
    check_activation(silu, "relu")
    with pytest.raises(UnsupportedError, match="this model runs silu"):
        check_activation(relu, "silu")


# Where it goes by default: beside the model


def test_beside_the_model_an_older_file_is_replaced(relu: GGUFFile) -> None:
    check_target(relu, None, is_inside=False)
    CALIBRATION.beside(relu.path).write_text("whatever an older version wrote")
    check_target(relu, None, is_inside=False)


def test_beside_the_model_only_a_file_is_replaced(
    relu: GGUFFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    CALIBRATION.beside(relu.path).mkdir()
    _refused("is not a regular file", relu, None, is_inside=False)
    # What is in the package is calibrated in the cache.
    monkeypatch.setattr(targets, "is_packaged", lambda path: path == relu.path)
    check_target(relu, None, is_inside=False)


# A file of its own


def test_a_new_an_empty_or_an_older_calibration_may_be_written(
    relu: GGUFFile, tmp_path: Path, calibration: Path
) -> None:
    check_target(relu, tmp_path / "new.json", is_inside=False)
    check_target(relu, calibration, is_inside=False)
    (tmp_path / "empty").touch()
    check_target(relu, tmp_path / "empty", is_inside=False)


def test_anything_else_is_not_replaced(relu: GGUFFile, silu: GGUFFile, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("notes")
    _refused(
        "already exists and is not a readable calibration",
        relu,
        tmp_path / "notes.txt",
        is_inside=False,
    )
    _refused("is not a readable calibration", relu, silu.path, is_inside=False)
    _refused("is not a regular file", relu, tmp_path, is_inside=False)
    # Nothing can lie below a file.
    _refused("cannot write: Not a directory", relu, relu.path / "below", is_inside=False)


def test_the_model_is_not_replaced_by_whatever_name(relu: GGUFFile, tmp_path: Path) -> None:
    (tmp_path / "symbolic").symlink_to(relu.path)
    os.link(relu.path, tmp_path / "hard")
    for name in ("relu.gguf", "symbolic", "hard"):
        _refused("is the model, which would be lost", relu, tmp_path / name, is_inside=False)


def test_no_part_of_a_model_is_replaced(relu: GGUFFile, silu: GGUFFile) -> None:
    both = replace(relu, paths=(relu.paths[0], silu.paths[0]))
    for path in both.paths:
        _refused("is the model, which would be lost", both, path, is_inside=False)


# Inside a model


def test_the_model_its_calibrated_copies_and_empty_files_may_be_written(
    relu: GGUFFile, tmp_path: Path
) -> None:
    check_target(relu, None, is_inside=True)
    check_target(relu, relu.path, is_inside=True)
    check_target(relu, tmp_path / "new.gguf", is_inside=True)
    (tmp_path / "empty").touch()
    check_target(relu, tmp_path / "empty", is_inside=True)
    rewrite_metadata(relu, tmp_path / "copy.gguf", {keys.CALIBRATION: "{}"})
    check_target(relu, tmp_path / "copy.gguf", is_inside=True)


def test_another_model_is_not_replaced(relu: GGUFFile, silu: GGUFFile, tmp_path: Path) -> None:
    bamboo = write_model(tmp_path / "bamboo.gguf", TINY_MODELS["bamboo"])
    for path in (silu.path, bamboo):
        _refused("not a model that calibrate wrote", relu, path, is_inside=True)


def test_nothing_but_a_model_is_replaced_by_one(
    relu: GGUFFile, tmp_path: Path, calibration: Path
) -> None:
    _refused("not a model that calibrate wrote", relu, calibration, is_inside=True)
    (tmp_path / "short").write_bytes(b"GGU")
    _refused(
        "not a model that calibrate wrote",
        relu,
        tmp_path / "short",
        is_inside=True,
    )
    (tmp_path / "longer").write_bytes(b"\0GGUF")
    _refused(
        "not a model that calibrate wrote",
        relu,
        tmp_path / "longer",
        is_inside=True,
    )
    _refused("is not a regular file", relu, tmp_path, is_inside=True)


def test_a_model_in_parts_is_not_rewritten(relu: GGUFFile, silu: GGUFFile) -> None:
    both = replace(relu, paths=(relu.paths[0], silu.paths[0]))
    _refused("is one of 2 parts", both, None, is_inside=True)


def test_the_model_in_the_package_is_not_rewritten(
    relu: GGUFFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets, "is_packaged", lambda path: path == relu.path)
    _refused("the model in the package is not rewritten", relu, None, is_inside=True)
    _refused("the model in the package is not rewritten", relu, relu.path, is_inside=True)
    check_target(relu, tmp_path / "copy.gguf", is_inside=True)
