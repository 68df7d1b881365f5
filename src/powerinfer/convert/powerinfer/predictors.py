"""Predictors in PowerInfer's form: a folder with `model_N.pt` of each layer and a `config.json`."""

import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from filecmp import cmp
from pathlib import Path

from powerinfer._replacing import replacing
from powerinfer.convert.arrange import Piece, Target
from powerinfer.convert.checkpoint import CheckpointTensor
from powerinfer.convert.checkpoint.checkpoint import read_json
from powerinfer.convert.checkpoint.tensor import STORAGE
from powerinfer.convert.checkpoint.torch_files import read_torch_file
from powerinfer.errors import CheckpointError
from powerinfer.models.checkpoints.config import CheckpointConfig
from powerinfer.placement.activation_record import record_path

__all__ = ["Predictors", "activation_files", "copy_activation", "read_predictors"]

_MODEL = re.compile(r"model_(0|[1-9][0-9]{0,5})\.pt")
_ACTIVATION = re.compile(r"activation(_(0|[1-9][0-9]{0,5})\.pt|\.json)")
_MATRICES = ("fc1.weight", "fc2.weight")
_LARGEST_CONFIG = 1 << 20
FOLDER = "activation"


@dataclass(frozen=True)
class Predictors:
    """The predictors of a folder.

    Attributes:
        tensors: by the name in the file to be.
        threshold: of their scores; None where the folder does not say.
    """

    tensors: dict[str, CheckpointTensor]
    threshold: float | None

    @property
    def targets(self) -> list[Target]:
        """The tensors, for the file to be."""
        return [
            Target(name, tensor.shape, (Piece(tensor, tensor.values),))
            for name, tensor in self.tensors.items()
        ]


def read_predictors(folder: Path, num_layers: int) -> Predictors:
    """Map the files of a folder.

    Raises:
        CheckpointError: a layer has none, or a file holds something else; names file and tensor.
        DeviceError: torch, which reads them, is not installed.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder; expected one with model_0.pt")
    numbers = {int(match[1]) for path in folder.iterdir() if (match := _MODEL.fullmatch(path.name))}
    if numbers != set(range(num_layers)):
        missing = sorted(set(range(num_layers)) - numbers)
        problem = f"model_{missing[0]}.pt is missing" if missing else "has more than the model"
        raise CheckpointError(
            f"{folder}: has predictors of {len(numbers)} layers, the model has {num_layers}: "
            f"{problem}"
        )
    found: dict[str, CheckpointTensor] = {}
    for number in range(num_layers):
        path = folder / f"model_{number}.pt"
        tensors = read_torch_file(path)
        if set(tensors) != set(_MATRICES):
            raise CheckpointError(
                f"{path}: holds {', '.join(sorted(tensors))[:120]}; expected "
                f"{' and '.join(_MATRICES)}"
            )
        for name in _MATRICES:
            _check_format(tensors[name])
            found[f"blk.{number}.{name}"] = tensors[name]
    return Predictors(found, _threshold(folder / "config.json"))


def _check_format(tensor: CheckpointTensor) -> None:
    if tensor.format not in STORAGE or tensor.format == "u8":
        raise CheckpointError(f"{tensor}: is {tensor.format}; expected floating-point numbers")


def _threshold(path: Path) -> float | None:
    if not path.exists():
        return None
    config = CheckpointConfig(path, read_json(path, _LARGEST_CONFIG, "configuration"))
    return config.number("sparse_threshold") if config.has("sparse_threshold") else None


def activation_files(folders: list[Path], output: Path) -> list[Path]:
    """The files of the first `activation` folder among these, to be copied beside a file.

    Args:
        folders: where it may be.
        output: the file.

    Raises:
        CheckpointError: there is another model's beside the file already.
    """
    target = output.parent / FOLDER
    for folder in folders:
        files = sorted(
            path
            for path in _listed(folder / FOLDER)
            if _ACTIVATION.fullmatch(path.name) and path.is_file()
        )
        if not files:
            continue
        # Behind the counts it tells of: without one of them it would be an error.
        record = record_path(folder / FOLDER)
        files += [record] if record.is_file() else []
        if target.exists() and target.samefile(folder / FOLDER):
            return []
        for path in files:
            other = target / path.name
            if other.exists() and not cmp(path, other, shallow=False):
                raise CheckpointError(
                    f"{other}: belongs to another model, whose statistics would be lost; name a "
                    "file in another folder"
                )
        return files
    return []


def _listed(folder: Path) -> Iterator[Path]:
    return folder.iterdir() if folder.is_dir() else iter(())


def copy_activation(files: Sequence[Path], output: Path) -> None:
    """Copy statistics of neurons into the folder `activation` beside a file.

    Raises:
        CheckpointError: it cannot be written.
    """
    folder = output.parent / FOLDER
    for path in files:
        try:
            folder.mkdir(exist_ok=True)
            with (
                path.open("rb") as source,
                replacing(folder / path.name, error=CheckpointError) as target,
            ):
                shutil.copyfileobj(source, target)
        except OSError as error:
            raise CheckpointError(
                f"{folder / path.name}: cannot be written: {error.strerror or error}"
            ) from None
