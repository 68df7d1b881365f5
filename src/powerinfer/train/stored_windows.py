"""Token windows in a file: cut from the texts once, then mapped by every run that resumes."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from powerinfer._replacing import replacing
from powerinfer.errors import PowerInferError
from powerinfer.values import IntArray

__all__ = ["StoredWindows", "open_windows", "store_windows"]


@dataclass(frozen=True, slots=True, eq=False)
class StoredWindows:
    """All windows of a text, i32[num_windows, window], mapped; the last ones are held out."""

    all: IntArray
    num_held_out: int

    @property
    def train(self) -> IntArray:
        """The windows to train on."""
        return self.all[: -self.num_held_out]

    @property
    def held_out(self) -> IntArray:
        """The windows that are not trained on, at least one."""
        return self.all[-self.num_held_out :]


def store_windows(
    path: Path, windows: Iterable[IntArray], progress: Callable[[int], None] | None = None
) -> None:
    """Write windows i32[window] to a file, which appears whole or not at all.

    An exception of the iterable leaves no file. `progress` is called with the number written.
    """
    with replacing(path, error=PowerInferError) as file:
        for count, window in enumerate(windows, 1):
            file.write(window.astype("<i4").tobytes())
            if progress is not None:
                progress(count)


def open_windows(path: Path, window: int, num_held_out: Callable[[int], int]) -> StoredWindows:
    """Map what `store_windows` wrote; `num_held_out` of their number is at least one."""
    try:
        ids = np.memmap(path, "<i4", "r")
    except (OSError, ValueError) as error:
        raise PowerInferError(f"{path}: cannot be read: {error}") from None
    windows = ids.reshape(-1, window)
    return StoredWindows(windows, num_held_out(len(windows)))
