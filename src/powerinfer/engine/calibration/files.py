"""Where the calibration of a model lies: beside it, inside it, or in the user's cache folder.

Beside and inside are what `powerinfer calibrate` was asked to write; the cache takes its place
where the model's folder is not writable. Brief calibrations that ``--sparsity auto`` makes have
files of their own there, so that they never change what a model does by default.
"""

import os
from contextlib import suppress
from pathlib import Path

from powerinfer._files import cache_folder, read_small_file, write_atomically
from powerinfer.engine.default_model import default_model_path
from powerinfer.errors import CalibrationError, PowerInferError
from powerinfer.gguf import GGUFFile, keys, model_identity, rewrite_metadata
from powerinfer.predictors.calibration import Calibration
from powerinfer.predictors.calibration_json import calibration_from_json, calibration_to_json

__all__ = [
    "beside",
    "find_brief_calibration",
    "find_calibration",
    "is_packaged",
    "read_calibration",
    "read_calibration_bytes",
    "save_brief_calibration",
    "save_calibration",
    "write_calibration",
    "write_inside",
]

LARGEST_BYTES = 256 << 20
_FOLDER = "calibrations"
_SUFFIX = ".calibration.json"
_BRIEF_SUFFIX = ".brief.calibration.json"


def beside(model_path: Path) -> Path:
    """`MODEL.calibration.json`."""
    return model_path.with_name(model_path.name + _SUFFIX)


def find_calibration(file: GGUFFile) -> Calibration | None:
    """The calibration of a model: the one beside it, else inside it, else in the cache.

    Raises:
        CalibrationError: there is one, but it is damaged or belongs to another model.
    """
    path = beside(file.path)
    if path.exists():
        return read_calibration(path, model_identity(file))
    if keys.CALIBRATION in file.metadata:
        return _checked(
            file.get_str(keys.CALIBRATION),
            f"{file.path}: metadata key {keys.CALIBRATION}",
            model_identity(file),
        )
    return _in_cache(file, _SUFFIX)


def find_brief_calibration(file: GGUFFile) -> Calibration | None:
    """What an earlier run with ``--sparsity auto`` measured; None where it is of no use."""
    try:
        return _in_cache(file, _BRIEF_SUFFIX)
    except CalibrationError:
        # Nobody made this file on purpose: measuring again repairs it.
        return None


def read_calibration(path: Path, identity: str) -> Calibration:
    """Read a file and check that it belongs to a model.

    Raises:
        CalibrationError: it cannot be read, is damaged, or belongs to another model.
    """
    return _checked(read_calibration_bytes(path), str(path), identity)


def read_calibration_bytes(path: Path) -> bytes:
    """Read a file that should be a calibration, without waiting for a pipe or reading a device.

    Raises:
        CalibrationError: it cannot be read, is no regular file, or is larger than any calibration.
    """
    return read_small_file(path, LARGEST_BYTES, kind="calibration", error=CalibrationError)


def save_calibration(file: GGUFFile, calibration: Calibration) -> Path:
    """Store beside the model or, where that is not possible, in the cache; return the path.

    The model in the package has its calibration in the cache always.

    Raises:
        CalibrationError: neither can be written.
    """
    if not is_packaged(file.path):
        try:
            return write_calibration(beside(file.path), calibration)
        except CalibrationError:
            # What is inside the model would be taken instead of what is in the cache.
            if os.access(file.path.parent, os.W_OK) or keys.CALIBRATION in file.metadata:
                raise
    return write_calibration(_cache_path(calibration.model_identity, _SUFFIX), calibration)


def save_brief_calibration(calibration: Calibration) -> None:
    """Keep what ``--sparsity auto`` measured; where that fails, it is measured again next time."""
    with suppress(CalibrationError):
        write_calibration(_cache_path(calibration.model_identity, _BRIEF_SUFFIX), calibration)


def write_calibration(path: Path, calibration: Calibration) -> Path:
    """Write a file under a temporary name, then rename it; return its path.

    Raises:
        CalibrationError: it cannot be written.
    """
    data = f"{calibration_to_json(calibration)}\n".encode()
    return write_atomically(path, data, error=CalibrationError)


def write_inside(file: GGUFFile, calibration: Calibration, output: Path | None = None) -> Path:
    """Store a calibration inside the model file, which is written anew; return the path.

    A calibration beside the file that is written goes: it would be taken instead of the new one.

    Args:
        file: the open model.
        calibration: of this model.
        output: another file to write, so that the model stays as it is.

    Raises:
        CalibrationError: the model is the one in the package, and no other file is named.
        GGUFError: the model is split, or the file cannot be written.
    """
    path = file.path if output is None else output
    if is_packaged(path):
        raise CalibrationError(
            f"{path}: the model in the package is not rewritten; name another file with -o"
        )
    rewrite_metadata(file, path, {keys.CALIBRATION: calibration_to_json(calibration)})
    try:
        beside(path).unlink(missing_ok=True)
    except OSError as error:
        raise CalibrationError(
            f"{beside(path)}: cannot be removed ({error.strerror or error}), and would be taken "
            f"instead of what is inside {path.name} now: remove it"
        ) from None
    return path


def _checked(text: str | bytes, where: str, identity: str) -> Calibration:
    calibration = calibration_from_json(text, where)
    if calibration.model_identity != identity:
        raise CalibrationError(
            f"{where}: this calibration was made for another model (identity "
            f"{calibration.model_identity[:12]:.12}..., this one's is {identity[:12]}...): remove "
            "it, or run `powerinfer calibrate` again"
        )
    return calibration


def is_packaged(path: Path) -> bool:
    """Whether a path is the model that comes with the package."""
    try:
        return default_model_path().samefile(path)
    except (PowerInferError, OSError):
        return False


def _in_cache(file: GGUFFile, suffix: str) -> Calibration | None:
    # The identity costs reading a little of every tensor: only where there is anything to find.
    folder = cache_folder(_FOLDER)
    if not folder.is_dir() or not any(folder.glob(f"*{suffix}")):
        return None
    identity = model_identity(file)
    path = _cache_path(identity, suffix)
    return read_calibration(path, identity) if path.exists() else None


def _cache_path(identity: str, suffix: str) -> Path:
    return cache_folder(_FOLDER) / f"{identity}{suffix}"
