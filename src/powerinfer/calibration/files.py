"""The place of a model's calibration: next to it, inside it, or in the user's cache folder.

`powerinfer calibrate` writes next to the model, or inside it if asked to; if the model's folder is
not writable, it writes into the cache. Brief calibrations that ``--sparsity auto`` makes have files
of their own there, so that they never change what a model does by default.
"""

import os
from dataclasses import replace
from pathlib import Path

from powerinfer._replacing import make_folder_of
from powerinfer.errors import CalibrationError, PowerInferError
from powerinfer.gguf import GGUFFile, keys, model_identity, rewrite_metadata
from powerinfer.predictors.calibration import Calibration
from powerinfer.predictors.calibration_json import CALIBRATION
from powerinfer.store.cached_models import remember_model
from powerinfer.store.default_model import default_model_path

__all__ = [
    "find_brief_calibration",
    "find_calibration",
    "is_packaged",
    "save_brief_calibration",
    "save_calibration",
    "write_inside",
]

_BRIEF = replace(CALIBRATION, suffix=".brief.calibration.json")


def find_calibration(file: GGUFFile) -> Calibration | None:
    """Find the calibration of a model: next to it, else inside it, else in the cache.

    Raises:
        CalibrationError: there is one, but it is damaged or belongs to another model.
    """
    path = CALIBRATION.beside(file.path)
    # A link that leads nowhere is a mistake to report, not a missing calibration.
    if os.path.lexists(path):
        return CALIBRATION.read(path, model_identity(file))
    if keys.CALIBRATION in file.metadata:
        return CALIBRATION.from_json(
            file.get_str(keys.CALIBRATION),
            f"{file.path}: metadata key {keys.CALIBRATION}",
            model_identity(file),
        )
    # The identity costs reading a little of every tensor: only where there is anything to find.
    if not CALIBRATION.has_cached():
        return None
    identity = model_identity(file)
    path = CALIBRATION.cached(identity)
    return CALIBRATION.read(path, identity) if os.path.lexists(path) else None


def find_brief_calibration(file: GGUFFile) -> Calibration | None:
    """Find what an earlier run with ``--sparsity auto`` measured; None if it cannot be used."""
    if not _BRIEF.has_cached():
        return None
    identity = model_identity(file)
    return _BRIEF.recall(_BRIEF.cached(identity), identity)


def save_calibration(file: GGUFFile, calibration: Calibration) -> Path:
    """Store next to the model or, if that is not possible, in the cache; return the path.

    The model in the package has its calibration in the cache always.
    """
    path = CALIBRATION.save(
        file.path,
        calibration,
        identity=calibration.model_identity,
        may_lie_beside=not is_packaged(file.path),
        # A calibration inside the model would be taken instead of the one in the cache.
        may_lie_in_cache=keys.CALIBRATION not in file.metadata,
    )
    if path != CALIBRATION.beside(file.path):
        remember_model(file.path, calibration.model_identity)
    return path


def save_brief_calibration(calibration: Calibration) -> None:
    """Keep a calibration of ``--sparsity auto``; if that fails, it is measured again next time."""
    _BRIEF.keep(_BRIEF.cached(calibration.model_identity), calibration)


def write_inside(file: GGUFFile, calibration: Calibration, output: Path | None = None) -> Path:
    """Store a calibration inside a rewritten model file; return the path.

    With `output` that other file is written, and its folder made, so that the model stays as it is.
    A calibration next to the written file goes: it would be taken instead of the new one.

    Raises:
        CalibrationError: the model is the one in the package, and no other file is named; or the
            folder cannot be made.
        GGUFError: the model is split, or the file cannot be written.
    """
    path = file.path if output is None else output
    if is_packaged(path):
        raise CalibrationError(
            f"{path}: the model in the package is not rewritten",
            remedy="name another file with {output}",
        )
    make_folder_of(path, error=CalibrationError)
    rewrite_metadata(file, path, {keys.CALIBRATION: CALIBRATION.to_json(calibration)})
    beside = CALIBRATION.beside(path)
    try:
        beside.unlink(missing_ok=True)
    except OSError as error:
        raise CalibrationError(
            f"{beside}: cannot be removed ({error.strerror or error}), and would be taken "
            f"instead of what is inside {path.name} now: remove it"
        ) from None
    return path


def is_packaged(path: Path) -> bool:
    """Check for the model that comes with the package."""
    try:
        return default_model_path().samefile(path)
    except (PowerInferError, OSError):
        return False
