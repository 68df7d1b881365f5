"""PowerInfer predictors: a folder with `model_N.pt` of each layer and a `config.json`."""

import re
import shutil
from collections.abc import Collection, Sequence
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
_MOST_LISTED = 8
FOLDER = "activation"


@dataclass(frozen=True)
class Predictors:
    """Predictors of a folder.

    Attributes:
        tensors: tensors by name in the file to write.
        threshold: threshold of the scores; None if the folder has none.
        experts: how many, and neurons of each, which lie below each other in an fc2; (0, 0) for
            models without experts.
    """

    tensors: dict[str, CheckpointTensor]
    threshold: float | None
    experts: tuple[int, int] = (0, 0)

    @property
    def targets(self) -> list[Target]:
        """The tensors as targets of a file to write."""
        return [self._target(name, tensor) for name, tensor in self.tensors.items()]

    def _target(self, name: str, tensor: CheckpointTensor) -> Target:
        shape, pieces = tensor.shape, (Piece(tensor, tensor.values),)
        count, size = self.experts
        if not count or not name.endswith(".fc2.weight"):
            return Target(name, shape, pieces)
        if shape[:-1] == (count * size,):
            shape = (count, size, shape[-1])
        return Target(name.replace(".fc2.", ".fc2_exps."), shape, pieces)


def read_predictors(
    folder: Path, layers: Collection[int], *, experts: tuple[int, int] = (0, 0)
) -> Predictors:
    """Map the files of a folder, which has one for each of these layers.

    With experts, fc2 has the neurons of the first one first, then those of the next, and so on.

    Raises:
        CheckpointError: a layer has no predictor, or a file holds something else; the message names
            file and tensor.
        DeviceError: torch, which reads them, is not installed.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: no such folder; expected one with model_{min(layers)}.pt")
    numbers = {int(match[1]) for path in folder.iterdir() if (match := _MODEL.fullmatch(path.name))}
    if numbers != set(layers):
        missing = sorted(set(layers) - numbers)
        problem = f"model_{missing[0]}.pt is missing" if missing else "has more than the model"
        wanted = ", ".join(map(str, sorted(layers)[:_MOST_LISTED]))
        more = ", ..." if len(layers) > _MOST_LISTED else ""
        which = "" if set(layers) == set(range(len(layers))) else f" to predict, {wanted}{more}"
        raise CheckpointError(
            f"{folder}: has predictors of {len(numbers)} layers, the model has {len(layers)}"
            f"{which}: {problem}"
        )
    found: dict[str, CheckpointTensor] = {}
    for number in sorted(layers):
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
    return Predictors(found, _threshold(folder / "config.json"), experts)


def _check_format(tensor: CheckpointTensor) -> None:
    if tensor.format not in STORAGE or tensor.format == "u8":
        raise CheckpointError(f"{tensor}: is {tensor.format}; expected floating-point numbers")


def _threshold(path: Path) -> float | None:
    if not path.exists():
        return None
    config = CheckpointConfig(path, read_json(path, _LARGEST_CONFIG, "configuration"))
    return config.number("sparse_threshold") if config.has("sparse_threshold") else None


def activation_files(folders: list[Path], output: Path) -> list[Path]:
    """Find the first `activation` folder and list its files, to be copied next to a file.

    Raises:
        CheckpointError: another model's statistics are next to the file already.
    """
    target = output.parent / FOLDER
    for folder in folders:
        files = sorted(
            path
            for path in (folder / FOLDER).glob("*")
            if _ACTIVATION.fullmatch(path.name) and path.is_file()
        )
        if not files:
            continue
        # Copied after the counts it describes: without one of them it would be invalid.
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


def copy_activation(files: Sequence[Path], output: Path) -> None:
    """Copy activation statistics into the folder `activation` next to a file."""
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
