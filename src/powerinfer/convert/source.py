"""From what a user calls a checkpoint to the folder that holds it."""

from collections.abc import Callable
from pathlib import Path

from powerinfer.errors import CheckpointError

__all__ = ["checkpoint_folder"]


def checkpoint_folder(source: str, fetching: Callable[[int, int], None] | None = None) -> Path:
    """Return the folder of a checkpoint.

    Args:
        source: a folder, its `config.json`, or `hf:ORG/NAME[@REVISION]`, which is fetched.
        fetching: told (bytes that are there, bytes in all) while it is.

    Raises:
        CheckpointError: it is none of these.
        HubError: it cannot be fetched.
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
