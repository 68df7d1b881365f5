"""A calibration as tables for other programs: `calibrate --export FILE.npz|csv`.

The columns, their units and meaning are on docs/calibration-file.md; a test compares both.
"""

import csv
import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from powerinfer._files import write_atomically
from powerinfer.errors import CalibrationError, UnsupportedError
from powerinfer.predictors.calibration import Calibration
from powerinfer.predictors.names import MAX_PARTS

__all__ = ["check_export", "export_calibration", "tables"]

Column: TypeAlias = npt.NDArray[Any]
Table: TypeAlias = Mapping[str, Column]

_NPZ, _CSV = ".npz", ".csv"
_MAIN = "curves"
_FIRST_COLUMNS = {
    "curves": "layer,kind,threshold_1,",
    "layers": "layer,kind,threshold_1,",
    "neurons": "layer,neuron,",
    "inputs": "layer,component,",
}
_FIGURES = ("density", "recall", "precision", "ffn_error", "ffn_error_high", "time")
_LAST_ARRAY = "inputs.variance.npy"


def tables(calibration: Calibration) -> dict[str, Table]:
    """All tables, by name; the columns of a table are equally long.

    `curves` has a row for each setting of each kind in each layer, `layers` for each layer,
    `neurons` for each neuron of each layer, `inputs` for each component of each FFN's input.
    """
    return {
        "curves": _curves(calibration),
        "layers": _layers(calibration),
        "neurons": _neurons(calibration),
        "inputs": _inputs(calibration),
    }


def check_export(path: Path) -> None:
    """Check that a calibration can be exported to a file: its ending, and what would be replaced.

    Raises:
        UnsupportedError: the ending is neither `.npz` nor `.csv`.
    """
    if path.suffix not in (_NPZ, _CSV):
        raise UnsupportedError(
            f"{path}: a calibration is exported to a file that ends in {_NPZ} (numpy) or {_CSV}",
            remedy="name one with {export}",
        )
    for table, target in _targets(path).items():
        if target.exists() and not target.is_file():
            raise CalibrationError(f"{target}: cannot write: it is not a regular file")
        if target.exists() and not _is_export(target, table):
            raise CalibrationError(
                f"{target}: already exists and is not a calibration export",
                remedy="name another file with {export}",
            )


def export_calibration(calibration: Calibration, path: Path) -> list[Path]:
    """Write the tables: all into one `.npz`, or one `.csv` for each; return the files.

    In an `.npz`, the array `neurons.frequency` is a column of the table `neurons`. A path `x.csv`
    gets the table `curves`; the others lie next to it: `x.neurons.csv`.
    """
    check_export(path)
    found = tables(calibration)
    if path.suffix == _NPZ:
        return [write_atomically(path, _as_npz(found), error=CalibrationError)]
    return [
        write_atomically(target, _as_csv(found[table]), error=CalibrationError)
        for table, target in _targets(path).items()
    ]


def _targets(path: Path) -> dict[str, Path]:
    """The files of an export, by table; an `.npz` holds all."""
    if path.suffix == _NPZ:
        return {_MAIN: path}
    others = (name for name in _FIRST_COLUMNS if name != _MAIN)
    return {_MAIN: path} | {name: path.with_suffix(f".{name}{_CSV}") for name in others}


def _is_export(path: Path, table: str) -> bool:
    """Check that a file may be replaced: nothing is lost with an empty one, or an older export."""
    try:
        if not path.stat().st_size:
            return True
        if path.suffix == _CSV:
            with path.open("rb") as file:
                return file.readline(1000).startswith(_FIRST_COLUMNS[table].encode())
        with zipfile.ZipFile(path) as archive:
            return _LAST_ARRAY in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def _as_npz(found: Mapping[str, Table]) -> bytes:
    arrays = {
        f"{table}.{name}": column
        for table, columns in found.items()
        for name, column in columns.items()
    }
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **arrays)
    return content.getvalue()


def _as_csv(columns: Table) -> bytes:
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(_as_text(column) for column in columns.values()), strict=True))
    return content.getvalue().encode()


def _as_text(column: Column) -> list[str]:
    """Format numbers so that they are read back without loss; NaN is empty, true is 1."""
    if column.dtype.kind == "b":
        return [str(int(value)) for value in column.tolist()]
    if column.dtype.kind == "f":
        return ["" if value != value else str(value) for value in column]
    return [str(value) for value in column.tolist()]


def _curves(calibration: Calibration) -> Table:
    rows = [
        (number, kind, point, point is layer.chosen_point)
        for number, layer in enumerate(calibration.layers)
        for kind, curve in layer.curves.items()
        for point in curve
    ]
    points = [point for _, _, point, _ in rows]
    return {
        "layer": np.array([number for number, *_ in rows], np.int64),
        "kind": np.array([kind for _, kind, *_ in rows], np.str_),
        **_thresholds([point.thresholds for point in points]),
        **{name: _doubles([getattr(point, name) for point in points]) for name in _FIGURES},
        "is_chosen": np.array([is_chosen for *_, is_chosen in rows], np.bool_),
    }


def _layers(calibration: Calibration) -> Table:
    layers, dial = calibration.layers, calibration.dial
    count = len(layers)
    return {
        "layer": np.arange(count, dtype=np.int64),
        "kind": np.array([layer.choice.kind for layer in layers], np.str_),
        **_thresholds([layer.choice.thresholds for layer in layers]),
        "active_share": _doubles([calibration.active_share(number) for number in range(count)]),
        "hot_share": _doubles([layer.hot_share() for layer in layers]),
        "model": np.full(count, calibration.model_identity),
        "activation": np.full(count, calibration.activation),
        "text": np.full(count, calibration.text_name),
        "tokens": np.full(count, calibration.num_tokens, np.int64),
        "dial_max_ffn_error": _doubles([dial.max_ffn_error] * count),
        "dial_recall": _doubles([dial.recall] * count),
        "dial_zeros": _doubles([dial.zeros] * count),
    }


def _neurons(calibration: Calibration) -> Table:
    counts = [layer.num_active for layer in calibration.layers]
    num_active = np.concatenate(counts)
    return {
        **_numbered("neuron", [len(active) for active in counts]),
        "num_active": num_active,
        "frequency": num_active / calibration.num_tokens,
    }


def _inputs(calibration: Calibration) -> Table:
    layers = calibration.layers
    return {
        **_numbered("component", [len(layer.mean) for layer in layers]),
        "mean": np.concatenate([layer.mean for layer in layers]),
        "variance": np.concatenate([layer.variance for layer in layers]),
    }


def _numbered(name: str, sizes: list[int]) -> Table:
    """The number of the layer of each row, and its number within the layer."""
    return {
        "layer": np.repeat(np.arange(len(sizes), dtype=np.int64), sizes),
        name: np.concatenate([np.arange(size, dtype=np.int64) for size in sizes]),
    }


def _thresholds(of_rows: list[tuple[float, ...]]) -> Table:
    """A column for each part that a cascade may have; NaN if there is no such part."""
    padded = np.full((len(of_rows), MAX_PARTS), np.nan)
    for row, thresholds in zip(padded, of_rows, strict=True):
        row[: len(thresholds)] = thresholds
    return {f"threshold_{part + 1}": padded[:, part] for part in range(MAX_PARTS)}


def _doubles(values: list[float] | list[float | None]) -> npt.NDArray[np.float64]:
    return np.array([np.nan if value is None else value for value in values], np.float64)
