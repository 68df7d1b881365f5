"""The folder `activation` that a profile is written to, and what may be replaced in it."""

from contextlib import suppress
from pathlib import Path

import torch

from powerinfer._replacing import make_folder_of
from powerinfer.errors import PlacementError, PowerInferError
from powerinfer.placement.activation_folder import has_counts, read_profile
from powerinfer.placement.activation_record import (
    ACTIVATION,
    ActivationProfile,
    Counted,
    record_path,
)
from powerinfer.train.checkpoint import write_torch_file

__all__ = ["check_target", "checkpoint_path", "finished_profile", "write_profile"]


def checkpoint_path(folder: Path) -> Path:
    """Where a folder has the counts of an unfinished profile."""
    return folder / "profile.checkpoint"


def check_target(folder: Path, model_identity: str) -> None:
    """Check that nothing is replaced but an older profile of the same model.

    Raises:
        PlacementError: the folder has counts of another model or program.
    """
    path = record_path(folder)
    if path.exists():
        found = ACTIVATION.read(path).counted.model_identity
        if found != model_identity:
            raise PlacementError(
                f"{folder}: has the profile of another model (identity {found[:12]}..., this one's "
                f"is {model_identity[:12]}...), which would be lost",
                remedy="name another folder with {output}, or remove that one",
            )
    elif has_counts(folder) and not checkpoint_path(folder).exists():
        raise PlacementError(
            f"{folder}: has counts that another program wrote, which would be lost",
            remedy="name another folder with {output}, or remove that one",
        )


def finished_profile(
    folder: Path, counted: Counted, num_layers: int, num_neurons: int
) -> ActivationProfile | None:
    """The profile that an earlier run finished; None where it has to be counted.

    Args:
        folder: of the profile.
        counted: what decides the counts.
        num_layers: of the model.
        num_neurons: of each layer.
    """
    try:
        found = read_profile(folder, num_layers=num_layers, num_neurons=num_neurons)
    except PlacementError:
        return None  # it is counted again
    return found if found is not None and found.record.counted == counted else None


def write_profile(folder: Path, profile: ActivationProfile) -> None:
    """Write `activation_N.pt` of each layer, then `activation.json`; remove the checkpoint.

    The older `activation.json` says of newer counts that they do not belong to it, so that a kill
    at any moment leaves nothing that could be misread.

    Raises:
        PowerInferError: a file cannot be written.
    """
    for number, counts in enumerate(profile.counts):
        path = folder / f"activation_{number}.pt"
        make_folder_of(path, error=PowerInferError)
        write_torch_file(path, torch.from_numpy(counts.copy()))
    ACTIVATION.write(record_path(folder), profile.record)
    with suppress(OSError):
        checkpoint_path(folder).unlink(missing_ok=True)
