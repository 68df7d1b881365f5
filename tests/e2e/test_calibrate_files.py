"""What `powerinfer calibrate` refuses to read, replace or measure, and when it says so."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from command_line import assert_error, invoke, run_json
from powerinfer.calibration import files as calibration_files
from powerinfer.predictors.calibration_json import CALIBRATION
from tiny_models import TINY_MODELS, TinyModel, write_model

WORDS = "the old fox saw a red hen run over the hill and sat down to think of his supper. "
RUN = ("-p", "the fox", "-n", "2", "--temp", "0")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    recipe = replace(TINY_MODELS["llama"], activation="relu", is_down_transposed=True)
    return write_model(tmp_path / "relu.gguf", recipe)


@pytest.fixture
def nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(*_: object, **__: object) -> None:
        raise AssertionError("it was measured first")

    monkeypatch.setattr("powerinfer.calibration.calibrate.calibrate", measured)


@pytest.mark.usefixtures("nothing_is_measured")
def test_nothing_but_a_calibration_is_replaced(model: Path, tmp_path: Path) -> None:
    before = model.read_bytes()
    link, text = tmp_path / "link", tmp_path / "notes.txt"
    link.symlink_to(model)
    text.write_text('{"version": 1}')
    for target in (model, link):
        assert_error(invoke("calibrate", "-m", model, "-o", target), "is the model", "--write")
    assert_error(invoke("calibrate", "-m", model, "-o", text), "is not a readable calibration")
    assert_error(
        invoke("calibrate", "-m", model, "-o", text, "--write"),
        "is not a model that calibrate wrote",
    )
    for target in (Path("/dev/null"), tmp_path):
        assert_error(invoke("calibrate", "-m", model, "-o", target), "not a regular file")
    assert model.read_bytes() == before
    assert text.read_text() == '{"version": 1}'


@pytest.mark.usefixtures("nothing_is_measured")
def test_places_that_cannot_be_written_are_refused_before_measuring(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    below = tmp_path / "relu.gguf" / "below"
    assert_error(invoke("calibrate", "-m", model, "-o", below), "cannot write")
    assert_error(invoke("calibrate", "-m", model, "--plot", below), "cannot write")
    CALIBRATION.beside(model).mkdir()
    assert_error(invoke("calibrate", "-m", model), "not a regular file")

    def read_only(**_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", read_only)
    assert_error(invoke("calibrate", "-m", model, "--write"), "cannot write there: Permission")
    assert_error(invoke("calibrate", "--write"), "the model in the package is not rewritten")


def test_an_older_calibration_is_replaced(model: Path, tmp_path: Path) -> None:
    path, text = tmp_path / "c.json", tmp_path / "text.txt"
    text.write_text(WORDS * 4)
    path.touch()
    for kind in ("lowbit:2", "lowbit:3"):
        common = ("calibrate", "-m", model, "-f", text, "-o", path)
        run_json(*common, "--kinds", kind)
        assert list(json.loads(path.read_text())["layers"][0]["curves"]) == [kind]


def test_calibrations_that_are_pipes_devices_or_huge(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(CALIBRATION.beside(model))
    assert_error(invoke("run", "-m", model, *RUN), "not a regular file")
    CALIBRATION.beside(model).unlink()
    CALIBRATION.beside(model).symlink_to("/dev/zero")
    assert_error(invoke("run", "-m", model, *RUN), "not a regular file")
    CALIBRATION.beside(model).unlink()
    CALIBRATION.beside(model).write_bytes(b"{" * 65)
    monkeypatch.setattr(calibration_files, "CALIBRATION", replace(CALIBRATION, largest_bytes=64))
    assert_error(invoke("run", "-m", model, *RUN), "too large for a calibration")


def test_calibrations_that_are_links_to_nowhere(model: Path, tmp_path: Path) -> None:
    path = CALIBRATION.beside(model)
    path.symlink_to(tmp_path / "gone")
    result = invoke("run", "-m", model, *RUN)
    assert_error(result, f"{path}: cannot be read: it is a symbolic link to {tmp_path / 'gone'}")
    path.unlink()
    path.symlink_to(path)
    assert_error(invoke("run", "-m", model, *RUN), f"{path}: cannot be read: Too many levels")


@pytest.mark.usefixtures("nothing_is_measured")
@pytest.mark.parametrize(
    ("kinds", "messages"),
    [
        ("off", ["'off' has no threshold to calibrate", "sign+lowbit:2"]),
        ("auto", ["'auto' has no threshold to calibrate"]),
        ("lowbit:2,exact", ["'exact' has no threshold to calibrate", "mlp:q8_0"]),
        ("oracle", ["'oracle' has no threshold to calibrate"]),
        ("sign+", ["sparsity 'sign+' is not supported"]),
        ("sign+sign+sign+sign", ["at most 3 parts"]),
        ("sing", ["Did you mean 'sign'", "sign+lowbit:2"]),
    ],
)
def test_kinds_that_cannot_be_measured(model: Path, kinds: str, messages: list[str]) -> None:
    assert_error(invoke("calibrate", "-m", model, "--kinds", kinds), *messages)


def test_models_that_are_never_zero(tmp_path: Path) -> None:
    silu = write_model(tmp_path / "silu.gguf", TinyModel("llama"))
    result = invoke("calibrate", "-m", silu)
    assert_error(result, "nothing to calibrate", "silu", "--activation")
    assert "exact" not in result.output
