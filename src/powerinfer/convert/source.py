"""Resolving the user's name of a checkpoint to its folder."""

from collections.abc import Callable
from pathlib import Path

from powerinfer.errors import CheckpointError

__all__ = ["checkpoint_folder"]


def checkpoint_folder(source: str, fetching: Callable[[int, int], None] | None = None) -> Path:
    """Return the folder of a checkpoint.

    Args:
        source: a folder, its `config.json`, or `hf:ORG/NAME[@REVISION]` to download.
        fetching: called with (bytes present, bytes in all) during a download.

    Raises:
        CheckpointError: it is none of these.
        HubError: the download failed.
    """
    if source.startswith("hf:"):
        from powerinfer.hub import fetch

        return fetch.checkpoint_folder(source, progress=fetching)
    path = Path(source)
    if path.name == "config.json" and path.is_file():
        return path.parent
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise CheckpointError(f"{source}: {what}; expected the folder of a checkpoint")
    return path
