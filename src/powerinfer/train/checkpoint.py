"""Checkpoints from which a training run resumes exactly, never half-written."""

import ctypes
import io
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias, cast

import torch

from powerinfer._replacing import replacing
from powerinfer.errors import PowerInferError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = [
    "SavedState",
    "first_line",
    "keep_freed_memory",
    "load_checkpoint",
    "save_checkpoint",
    "write_torch_file",
]

SavedState: TypeAlias = dict[str, Any]
"""State that a run saves: tensors, numbers, texts, and lists and dicts of them, by name."""


def save_checkpoint(path: Path, recipe: str, state: Mapping[str, object]) -> None:
    """Write a state and torch's random state to ``path``, atomically.

    `recipe` is the text of everything that decides the run; only a run with the same one resumes.
    """
    checkpoint = {"recipe": recipe, "state": dict(state), "random": torch.get_rng_state()}
    write_torch_file(path, checkpoint)


def write_torch_file(path: Path, value: object) -> None:
    """Write a value in `torch.save`'s format, atomically."""
    with replacing(path, error=PowerInferError) as file:
        disk = _Disk(file)
        try:
            _in_thread(partial(torch.save, value, cast(BinaryIO, disk)))
        except RuntimeError:
            # torch words what the disk said as a fault of its own.
            if disk.problem is not None:
                raise disk.problem from None
            raise


def _in_thread(work: Callable[[], None]) -> None:
    """Run `work` to its end in a thread, where no signal can interrupt it.

    torch's writer ends the process if Ctrl-C raises in the `write` that it calls. Signals raise in
    the main thread alone, which raises what came once the work is done.
    """
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  raised below
            raised.append(error)

    thread = threading.Thread(target=run)
    try:
        thread.start()
        thread.join()
    except BaseException:
        while thread.is_alive():
            with suppress(BaseException):
                thread.join()
        raise
    if raised:
        raise raised[0]


class _Disk(io.RawIOBase):
    """A file that remembers why writing to it failed."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.problem: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: "ReadableBuffer") -> int:
        try:
            return self._file.write(data)
        except OSError as error:
            self.problem = self.problem or error
            raise


def load_checkpoint(path: Path, recipe: str) -> SavedState | None:
    """Read the state at ``path`` and restore torch's random state; None if there is no file.

    Raises:
        PowerInferError: the file is damaged, or belongs to a run with another recipe.
    """
    if not path.exists():
        return None
    try:
        checkpoint = torch.load(path, weights_only=True)
        found = checkpoint["recipe"]
        state: SavedState = checkpoint["state"]
        random = checkpoint["random"]
    except Exception as error:  # noqa: BLE001 - a damaged file may make torch raise anything
        raise PowerInferError(
            f"{path}: is no checkpoint of a training run ({first_line(error):.100}); remove it to "
            "start again"
        ) from None
    if found != recipe:
        raise PowerInferError(
            f"{path} belongs to a run with another recipe; continue with the same options, "
            "choose another folder, or remove it"
        )
    torch.set_rng_state(random)
    return state


def first_line(error: Exception) -> str:
    """The first line that an error of another library has, or its name."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0]


def keep_freed_memory() -> None:
    """Tell glibc to reuse large freed blocks; other C libraries are left as they are.

    A training step frees and allocates the same tens of megabytes again and again. By default every
    such block goes back to the kernel and is cleared when it is touched again, a third of the step.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return
    trim_threshold, mmap_threshold, ceiling = -1, -3, 1 << 30
    mallopt(mmap_threshold, ceiling)
    mallopt(trim_threshold, (1 << 31) - 1)
