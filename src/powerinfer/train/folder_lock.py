"""A lock on the folder of a run, so that no two processes train in it."""

from pathlib import Path
from typing import BinaryIO

from powerinfer._locks import try_lock
from powerinfer.errors import PowerInferError

__all__ = ["lock_folder"]


def lock_folder(folder: Path, busy: str) -> BinaryIO:
    """Make a folder and lock it until the file that is returned is closed.

    Raises:
        OSError: the folder cannot be made or written to.
        PowerInferError: another process has locked it; the message is `busy`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = (folder / "lock").open("ab")
    try:
        try_lock(file)
    except BlockingIOError:
        file.close()
        raise PowerInferError(busy) from None
    except OSError:
        pass  # a file system without locks
    return file
