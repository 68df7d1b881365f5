"""From what a user calls a checkpoint to the folder that holds it."""

from pathlib import Path

from powerinfer.errors import CheckpointError

__all__ = ["checkpoint_folder"]


def checkpoint_folder(source: str) -> Path:
    """Return the folder of a checkpoint.

    Args:
        source: a folder, or its `config.json`.

    Raises:
        CheckpointError: it is neither.
    """
    path = Path(source)
    if path.name == "config.json" and path.is_file():
        return path.parent
    if not path.is_dir():
        what = "is a file" if path.exists() else "does not exist"
        raise CheckpointError(f"{source}: {what}; expected the folder of a checkpoint")
    return path
