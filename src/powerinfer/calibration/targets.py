"""Checks before measuring that a model can be calibrated and the result stored."""

import stat
from pathlib import Path

from powerinfer.calibration.files import is_packaged
from powerinfer.errors import CalibrationError, GGUFError, UnsupportedError
from powerinfer.gguf import GGUFFile, keys, open_gguf
from powerinfer.models import architecture_of, read_config
from powerinfer.predictors.calibration_json import CALIBRATION
from powerinfer.values import Activation

__all__ = ["check_activation", "check_target"]


def check_activation(
    file: GGUFFile, activation: str | None, *, purpose: str = "calibrate", may_cut: bool = False
) -> Activation:
    """Check that a model has neurons that can be skipped; `activation` overrides the file's.

    Args:
        may_cut: small values of its activation may count as zero.

    Raises:
        GGUFError: the file's configuration is damaged.
        UnsupportedError: its architecture is not implemented, it has no FFN, or its activation is
            never zero.
    """
    config = read_config(file, architecture_of(file), activation)
    if not config.has_ffns:
        raise UnsupportedError(f"there is nothing to {purpose}: the model has no FFN")
    found = config.activation
    if not found.is_sparse and not (may_cut and found.is_cuttable):
        is_offered = found.is_cuttable and purpose == "calibrate"
        raise UnsupportedError(
            f"there is nothing to {purpose}: neurons are skipped under activations of the ReLU "
            f"family, and this model runs {found}",
            remedy="if that is wrong, name the right one with {activation}"
            + ("; {zeros} finds thresholds on it, with loss" if is_offered else ""),
        )
    return found


def check_target(file: GGUFFile, output: Path | None, *, is_inside: bool) -> None:
    """Check that writing a calibration replaces nothing but an older one.

    It goes to the file `output`, or to the default one. If it goes inside a model, that is
    `output`, or the model itself.
    """
    if is_inside:
        _check_model(file, file.path if output is None else output)
    elif output is not None:
        _check_file(file, output)
    elif not is_packaged(file.path):
        _is_regular_file(CALIBRATION.beside(file.path))


def _check_model(file: GGUFFile, target: Path) -> None:
    if len(file.paths) > 1:
        raise CalibrationError(
            f"{file.path}: is one of {len(file.paths)} parts; a calibration is written into models "
            "of one file only",
            remedy="leave {is_inside} out",
        )
    if is_packaged(target):
        raise CalibrationError(
            f"{target}: the model in the package is not rewritten",
            remedy="name another file with {output}",
        )
    is_lost = _is_regular_file(target) and target.stat().st_size
    if is_lost and not target.samefile(file.path) and not _has_calibration(target):
        raise CalibrationError(
            f"{target}: already exists and is not a model that calibrate wrote",
            remedy="remove it, or name another file with {output}",
        )


def _has_calibration(path: Path) -> bool:
    try:
        return keys.CALIBRATION in open_gguf(path).metadata
    except GGUFError:
        return False


def _check_file(file: GGUFFile, target: Path) -> None:
    if not _is_regular_file(target):
        return
    if any(path.samefile(target) for path in file.paths):
        raise CalibrationError(
            f"{target}: is the model, which would be lost",
            remedy="name another file with {output}, or store the calibration inside the model "
            "({is_inside=True})",
        )
    CALIBRATION.check_target(target)


def _is_regular_file(path: Path) -> bool:
    """Check that a file would be replaced."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    except OSError as error:
        raise CalibrationError(f"{path}: cannot write: {error.strerror or error}") from None
    if not stat.S_ISREG(mode):
        raise CalibrationError(f"{path}: cannot write: it is not a regular file; name another one")
    return True
