"""`calibrate --export`: the tables hold what was measured, and the page about them names them."""

import csv
import errno
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

import numpy as np
import numpy.typing as npt
import pytest

from command_line import assert_error, invoke, run_json
from patience import PATIENCE_S
from powerinfer.calibration.export import tables
from powerinfer.predictors.calibration import Calibration
from powerinfer.predictors.calibration_json import CALIBRATION
from tiny_models import TINY_EXPERTS, TINY_MODELS, write_model

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "calibration-file.md"
WORDS = "the old fox saw a red hen run over the hill and sat down to think of his supper. "
KINDS = ("--kinds", "lowbit:2,sign+lowbit:4")
OTHERS = ("layers", "neurons", "inputs")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = replace(TINY_MODELS["llama"], activation="relu", is_down_transposed=True)
    return write_model(tmp_path_factory.mktemp("model") / "relu.gguf", recipe)


@pytest.fixture(scope="module")
def text(model: Path) -> Path:
    path = model.with_name("text.txt")
    path.write_text(WORDS * 6)
    return path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Point(TypedDict):
    """A point of a curve in the stored file."""

    density: float
    recall: float
    precision: float
    ffn_error: float
    ffn_error_high: float
    time: float
    thresholds: list[float]


class Report(TypedDict):
    """What is read of `calibrate --json`."""

    exports: list[str]


def _export(model: Path, text: Path, target: Path, *more: str) -> Report:
    common = ("calibrate", "-m", model, "-f", text, "-o", target.with_suffix(".json"))
    report = run_json(*common, *KINDS, "--max-ffn-error", "0.3", *more, "--export", target)
    return {"exports": report["exports"]}


def _stored(target: Path) -> Calibration:
    return CALIBRATION.read(target.with_suffix(".json"))


def test_npz_holds_every_column(model: Path, text: Path, folder: Path) -> None:
    target = folder / "measured.npz"
    assert _export(model, text, target)["exports"] == [str(target)]
    wanted = tables(_stored(target))
    with np.load(target) as found:
        assert sorted(found) == sorted(f"{t}.{name}" for t in wanted for name in wanted[t])
        for table, columns in wanted.items():
            lengths = set()
            for name, column in columns.items():
                array = found[f"{table}.{name}"]
                assert array.dtype == column.dtype
                np.testing.assert_array_equal(array, column)
                lengths.add(len(array))
            assert len(lengths) == 1


def test_the_columns_are_the_measurements(model: Path, text: Path, folder: Path) -> None:
    """Against the file that is stored, read as plain JSON."""
    target = folder / "measured.npz"
    _export(model, text, target)
    stored = json.loads(target.with_suffix(".json").read_text())
    with np.load(target) as file:
        found = dict(file)
    num_points = 0
    for number, layer in enumerate(stored["layers"]):
        in_layer = found["neurons.layer"] == number
        assert found["neurons.num_active"][in_layer].tolist() == layer["active"]
        shares = [count / stored["text"]["tokens"] for count in layer["active"]]
        assert found["neurons.frequency"][in_layer].tolist() == shares
        assert found["layers.active_share"][number] == pytest.approx(np.mean(shares))
        assert found["neurons.neuron"][in_layer].tolist() == list(range(48))
        for name in ("mean", "variance"):
            column = found[f"inputs.{name}"][found["inputs.layer"] == number]
            np.testing.assert_array_equal(column, np.array(layer[name], np.float32))
        choice = layer["choice"]
        assert found["layers.kind"][number] == choice["kind"]
        for kind, points in layer["curves"].items():
            in_curve = (found["curves.layer"] == number) & (found["curves.kind"] == kind)
            num_points += len(points)
            _check_curve(found, in_curve, points, 1 + kind.count("+"))
            is_chosen = [
                kind == choice["kind"] and point["thresholds"] == choice["thresholds"]
                for point in points
            ]
            assert found["curves.is_chosen"][in_curve].tolist() == is_chosen
    assert num_points == len(found["curves.layer"])
    assert found["layers.dial_max_ffn_error"].tolist() == [0.3, 0.3]
    assert np.isnan(found["layers.dial_recall"]).all()
    assert set(found["layers.text"]) == {"text.txt"}
    assert set(found["layers.model"]) == {stored["model"]}


def _check_curve(
    found: Mapping[str, npt.NDArray[np.generic]],
    rows: npt.NDArray[np.bool_],
    points: Sequence[Point],
    num_parts: int,
) -> None:
    """The columns of one kind in one layer, against its points in the stored file."""
    for name in ("density", "recall", "precision", "ffn_error", "ffn_error_high", "time"):
        column = found[f"curves.{name}"][rows].tolist()
        assert column == [point[name] for point in points]
    for part in range(3):
        column = found[f"curves.threshold_{part + 1}"][rows].tolist()
        if part < num_parts:
            assert column == [point["thresholds"][part] for point in points]
        else:
            assert all(map(math.isnan, column))


def test_csv_reads_back_without_loss(model: Path, text: Path, folder: Path) -> None:
    target = folder / "measured.csv"
    files = [target, *(folder / f"measured.{name}.csv" for name in OTHERS)]
    assert _export(model, text, target)["exports"] == [str(path) for path in files]
    wanted = tables(_stored(target))
    for path, table in zip(files, wanted, strict=True):
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
        for name, column in wanted[table].items():
            cells = [row[name] for row in rows]
            if column.dtype.kind == "f":
                read = np.array([float(cell or "nan") for cell in cells], column.dtype)
                np.testing.assert_array_equal(read, column)
            elif column.dtype.kind == "U":
                assert cells == column.tolist()
            else:
                assert [int(cell) for cell in cells] == column.astype(np.int64).tolist()
    assert not any(b"\r" in path.read_bytes() for path in files)


@pytest.mark.parametrize("name", ["measured.npz", "measured.csv"])
def test_the_same_measurements_make_the_same_bytes(
    model: Path, text: Path, folder: Path, name: str
) -> None:
    found = []
    for _ in range(2):
        files = _export(model, text, folder / name)["exports"]
        found.append([Path(path).read_bytes() for path in files])
    assert found[0] == found[1]
    assert not [path for path in folder.iterdir() if ".part" in path.name]


@pytest.fixture
def nothing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(*_: object, **__: object) -> None:
        raise AssertionError("it was measured first")

    monkeypatch.setattr("powerinfer.calibration.calibrate.calibrate", measured)


@pytest.mark.usefixtures("nothing_is_measured")
def test_what_is_refused_before_measuring(model: Path, folder: Path) -> None:
    for name in ("measured", "measured.json", "measured.NPZ", "measured.npz.gz"):
        result = invoke("calibrate", "-m", model, "--export", name)
        assert_error(result, f"{name}: ", "ends in .npz (numpy) or .csv", "--export")
    for name in ("notes.csv", "notes.npz"):
        (folder / name).write_text("layer,of,cake\n")
        result = invoke("calibrate", "-m", model, "--export", name)
        assert_error(result, f"{name}: already exists", "name another file with --export")
        assert (folder / name).read_text() == "layer,of,cake\n"
    (folder / "x.neurons.csv").write_text("mine")
    result = invoke("calibrate", "-m", model, "--export", "x.csv")
    assert_error(result, "x.neurons.csv: already exists and is not a calibration export")
    (folder / "folder.npz").mkdir()
    result = invoke("calibrate", "-m", model, "--export", "folder.npz")
    assert_error(result, "folder.npz: cannot write: it is not a regular file")
    assert_error(invoke("calibrate", "--export", "notes.csv/x.npz"), "cannot write there")
    both = invoke("calibrate", "-m", model, "-o", "c.npz", "--export", "c.npz")
    assert_error(both, "-o and --export name the same file; give each its own")


def _fill_disk(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Let the disk be full when a file of this name reaches it."""
    reach_disk = os.fsync

    def reach_full_disk(descriptor: int) -> None:
        if name in Path(f"/proc/self/fd/{descriptor}").readlink().name:
            raise OSError(errno.ENOSPC, "No space left on device")
        reach_disk(descriptor)

    monkeypatch.setattr(os, "fsync", reach_full_disk)


@pytest.mark.parametrize(
    ("flag", "target", "file"),
    [
        ("--export", "measured.npz", "measured.npz"),
        ("--export", "measured.csv", "measured.inputs.csv"),
        pytest.param("--plot", "plots", "error-by-density.svg", marks=pytest.mark.slow),
    ],
)
def test_a_full_disk_loses_neither_calibration_nor_report(
    model: Path,
    text: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    flag: str,
    target: str,
    file: str,
) -> None:
    _fill_disk(monkeypatch, file)
    stored = folder / "c.json"
    common = ("calibrate", "-m", model, "-f", text, *KINDS, "-o", stored)
    result = invoke(*common, flag, target)
    said = f"{file}: cannot write: No space left on device; the calibration itself is stored in "
    assert_error(result, said + str(stored))
    assert len(CALIBRATION.read(stored).layers) == 2
    assert f"stored in {stored}" in result.stdout
    assert not list(folder.rglob("*.part"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_report_that_cannot_be_printed_says_where_the_calibration_is(
    model: Path, text: Path, tmp_path: Path
) -> None:
    stored = tmp_path / "c.json"
    program = [sys.executable, "-m", "powerinfer", "calibrate", *KINDS]
    files = ["-m", str(model), "-f", str(text), "-o", str(stored)]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*program, *files], stdout=full, stderr=subprocess.PIPE, check=False, timeout=PATIENCE_S
        )
    assert done.returncode == 2
    said = f"No space left on device; the calibration itself is stored in {stored}"
    assert said in done.stderr.decode()
    assert len(CALIBRATION.read(stored).layers) == 2


def _columns(section: str) -> list[str]:
    return re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)


def test_the_page_names_every_column(model: Path, text: Path, folder: Path) -> None:
    target = folder / "measured.npz"
    _export(model, text, target)
    page = PAGE.read_text(encoding="utf-8").partition("## MODEL.gguf")[0]
    sections = re.split(r"^### Table `(\w+)`$", page, flags=re.MULTILINE)[1:]
    named = dict(zip(sections[::2], map(_columns, sections[1::2]), strict=True))
    wanted = tables(_stored(target))
    assert named == {table: list(columns) for table, columns in wanted.items()}
    types = {"i": "i64", "U": "text", "b": "bool"}
    for table, section in zip(sections[::2], sections[1::2], strict=True):
        for name, column in wanted[table].items():
            kind = column.dtype.kind
            shown = types.get(kind, f"f{8 * column.dtype.itemsize}")
            assert f"| `{name}` | {shown} |" in section


def test_the_page_names_every_field_of_the_file(model: Path, text: Path, folder: Path) -> None:
    found = set()
    experts = write_model(folder / "experts.gguf", TINY_EXPERTS["mixtral-relu-biases"])
    silu = write_model(folder / "silu.gguf", TINY_MODELS["llama"])
    cases = (
        (model, (*KINDS, "--max-ffn-error", "0.3")),
        (experts, (*KINDS, "--recall", "0.9")),
        (silu, ("--zeros", "0.5")),
    )
    for path, flags in cases:
        target = folder / f"{path.stem}.json"
        run_json("calibrate", "-m", path, "-f", text, *flags, "-o", target)
        found |= set(_fields(json.loads(target.read_text())))
    named = _columns(PAGE.read_text(encoding="utf-8").partition("## MODEL.gguf")[2])
    assert sorted(named) == sorted(found)


def _fields(value: object, name: str = "") -> Iterator[str]:
    """Names of all plain values, with the names that are no part of the format replaced."""
    if isinstance(value, dict):
        for key, item in value.items():
            shown = "KIND" if name.endswith(".curves") else key
            yield from _fields(item, f"{name}.{shown}" if name else shown)
    elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
        for item in value:
            yield from _fields(item, f"{name}[]")
    else:
        yield name
