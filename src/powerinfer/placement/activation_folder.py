"""PowerInfer's `activation` folder: how often neurons fire, one file of `torch.save` per layer.

Its own tool sorts the files as text, so that from layer 2 of a model with more than ten layers on
it takes those of other layers; here they are sorted as numbers.
"""

import re
from pathlib import Path

import numpy as np

from powerinfer.errors import PlacementError
from powerinfer.placement.activation_stats import ActivationStats
from powerinfer.placement.torch_pickle import read_torch_vector

__all__ = ["find_activation_folder", "read_activation_folder"]

_NAME = "activation"
_FILE = re.compile(r"activation_(0|[1-9][0-9]{0,5})\.pt")


def find_activation_folder(model_path: Path) -> Path | None:
    """The folder beside a model, where published models have it; None where there is none."""
    folder = model_path.parent / _NAME
    try:
        has_files = any(_FILE.fullmatch(path.name) for path in folder.iterdir())
    except OSError:
        return None
    return folder if has_files else None


def read_activation_folder(folder: Path, *, num_layers: int, num_neurons: int) -> ActivationStats:
    """Read `activation_0.pt`, `activation_1.pt`, ...

    The files hold counts of an unknown number of tokens, or frequencies: where nothing is above 1
    they are taken as frequencies, else all are divided by the largest of all layers, as if that
    neuron fired always. Which neurons fire more than others is right in any case.

    Args:
        folder: that holds them.
        num_layers: of the model.
        num_neurons: in each FFN.

    Raises:
        PlacementError: a file is missing, there is one too many, or one is damaged, has another
            number of neurons, or holds what no count can be; names the file.
    """
    paths = _sorted_files(folder, num_layers)
    counts = np.stack([_counts(path, num_neurons) for path in paths])
    largest = float(counts.max())
    if not largest:
        raise PlacementError(f"{folder}: no neuron ever fired by these files; remove the folder")
    frequency = counts if largest <= 1 else counts / largest
    return ActivationStats(frequency.astype(np.float32), source=f"{folder}", num_tokens=0)


def _sorted_files(folder: Path, num_layers: int) -> list[Path]:
    try:
        matches = [_FILE.fullmatch(path.name) for path in folder.iterdir()]
    except OSError as error:
        raise PlacementError(
            f"{folder}: cannot list the folder: {error.strerror or error}"
        ) from None
    numbers = {int(match[1]) for match in matches if match}
    missing = sorted(set(range(num_layers)) - numbers)
    extra = sorted(numbers - set(range(num_layers)))
    if missing or extra:
        problem = (
            f"activation_{missing[0]}.pt is missing"
            if missing
            else (f"there is an activation_{extra[0]}.pt")
        )
        raise PlacementError(
            f"{folder}: the model has {num_layers} layers, one file each, but {problem}; "
            "restore the model's own files, or remove the folder"
        )
    return [folder / f"activation_{number}.pt" for number in range(num_layers)]


def _counts(path: Path, num_neurons: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    counts = read_torch_vector(path, num_neurons)
    if not np.isfinite(counts).all() or counts.min() < 0:
        raise PlacementError(
            f"{path}: holds numbers that are negative or not finite, which no count is; restore "
            "the file, or remove the folder"
        )
    return counts
