"""Files on disk between collecting and training; a killed run finds there what it had done."""

import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from powerinfer._files import format_bytes, read_small_file, write_atomically
from powerinfer._locks import try_lock
from powerinfer._replacing import remove_abandoned
from powerinfer.errors import PowerInferError
from powerinfer.train.predictors.layer_data import HalfArray
from powerinfer.values import ByteArray

__all__ = ["Cache", "LayerShape"]

_OURS = re.compile(
    r"(run|collected)\.json|lock|windows\.i32|survey\.npz|layer_\d+\.(inputs|fired|fit)"
)
_LARGEST_JSON = 1 << 20


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What is kept of a layer.

    Attributes:
        num_tokens: of the text.
        hidden_size: numbers the predictor sees of each.
        num_neurons: of the layer.
    """

    num_tokens: int
    hidden_size: int
    num_neurons: int

    @property
    def fired_bytes(self) -> int:
        """Bytes of the bits of one token."""
        return -(-self.num_neurons // 8)

    @property
    def num_bytes(self) -> int:
        """Of both files of a layer."""
        return self.num_tokens * (2 * self.hidden_size + self.fired_bytes)


class Cache:
    """A folder of one run; all that is in it can be made again.

    `windows.i32` is the text, `survey.npz` what a first look found, `layer_N.inputs` and
    `layer_N.fired` what was collected, `layer_N.fit` where the training of a layer stood.
    """

    def __init__(self, folder: Path, recipe: str) -> None:
        """Open a folder, or make it.

        Args:
            folder: of the run; may hold other files, which are left alone.
            recipe: text of everything that decides what is collected.

        Raises:
            PowerInferError: it belongs to another run, another process uses it, or it cannot be
                written.
        """
        self.folder = folder
        self._lock: BinaryIO | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / "lock").open("ab")
        except OSError as error:
            raise self._problem(error) from None
        try:
            try_lock(self._lock)
        except BlockingIOError:
            self.close()
            raise PowerInferError(
                f"{folder}: another process uses it; wait for it, or name another folder"
            ) from None
        except OSError:
            pass  # a file system without locks
        try:
            self._check(recipe)
        except BaseException:
            self.close()
            raise
        remove_abandoned(folder)

    def _check(self, recipe: str) -> None:
        path = self.folder / "run.json"
        if not path.exists():
            if any(_OURS.fullmatch(name) and name != "lock" for name in self._names()):
                raise self._foreign()
            write_atomically(path, recipe.encode(), error=PowerInferError)
            return
        found = read_small_file(path, _LARGEST_JSON, noun="run", error=PowerInferError)
        if found != recipe.encode():
            raise self._foreign()

    def _foreign(self) -> PowerInferError:
        return PowerInferError(
            f"{self.folder}: this cache belongs to a run with another model, text or number of "
            "tokens",
            remedy="go on with those, remove the folder, or name another one with {cache}",
        )

    def path(self, name: str) -> Path:
        """Of a file in it."""
        return self.folder / name

    def close(self) -> None:
        """Let other processes use it."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def remove(self) -> None:
        """Remove everything of this run, and the folder if nothing else is in it."""
        # What says whose files these are goes last.
        names = [name for name in self._names() if _OURS.fullmatch(name)]
        for name in sorted(names, key=lambda name: (name in ("run.json", "lock"), name == "lock")):
            with suppress(OSError):
                self.path(name).unlink()
        self.close()
        with suppress(OSError):
            self.folder.rmdir()

    def remove_layer(self, number: int) -> None:
        """Remove what was collected of a layer, and the state of its training."""
        for end in ("inputs", "fired", "fit"):
            self.path(f"layer_{number}.{end}").unlink(missing_ok=True)

    def remove_layers_but(self, kept: Sequence[int]) -> None:
        """Remove what a killed run left of other layers than these."""
        for name in self._names():
            found = re.fullmatch(r"layer_(\d+)\..+", name)
            if found and int(found[1]) not in kept:
                self.remove_layer(int(found[1]))

    def collected(self) -> tuple[range, int]:
        """The layers of the current pass, and the windows that are collected of each."""
        path = self.path("collected.json")
        if not path.exists():
            return range(0), 0
        content = read_small_file(path, _LARGEST_JSON, noun="state", error=PowerInferError)
        try:
            state = json.loads(content)
            return range(int(state["first"]), int(state["end"])), int(state["windows"])
        except (ValueError, KeyError, TypeError):
            raise PowerInferError(f"{path}: is damaged; remove the folder to start anew") from None

    def has_layers(self, numbers: Sequence[int]) -> bool:
        """Whether the files of these layers are there."""
        return all(
            self.path(f"layer_{number}.{end}").exists()
            for number in numbers
            for end in ("inputs", "fired")
        )

    def note_collected(self, layers: range, windows: int) -> None:
        """Say which windows of which layers lie safely on disk."""
        state = {"first": layers.start, "end": layers.stop, "windows": windows}
        write_atomically(
            self.path("collected.json"), json.dumps(state).encode(), error=PowerInferError
        )

    def reserve(self, number: int, shape: LayerShape) -> None:
        """Make the files of a layer, so that a full disk shows at once.

        Raises:
            PowerInferError: there is no room.
        """
        for end, width in (("inputs", 2 * shape.hidden_size), ("fired", shape.fired_bytes)):
            path = self.path(f"layer_{number}.{end}")
            try:
                with path.open("wb") as file:
                    _allocate(file, shape.num_tokens * width)
            except OSError as error:
                raise self._problem(error, shape) from None

    def layer(self, number: int, shape: LayerShape) -> tuple[HalfArray, ByteArray]:
        """What was collected of a layer: f16[num_tokens, hidden_size] and the bits, mapped.

        Raises:
            PowerInferError: the files cannot be read.
        """
        try:
            inputs = np.memmap(
                self.path(f"layer_{number}.inputs"),
                "<f2",
                "r",
                shape=(shape.num_tokens, shape.hidden_size),
            )
            fired = np.memmap(
                self.path(f"layer_{number}.fired"),
                np.uint8,
                "r",
                shape=(shape.num_tokens, shape.fired_bytes),
            )
        except (OSError, ValueError) as error:
            raise PowerInferError(
                f"{self.folder}: layer_{number} cannot be read ({error!s:.100}); remove the folder "
                "to collect it again"
            ) from None
        return inputs, fired

    def _problem(self, error: OSError, shape: LayerShape | None = None) -> PowerInferError:
        needed = "" if shape is None else f" (each layer takes {format_bytes(shape.num_bytes)})"
        return PowerInferError(
            f"{self.folder}: cannot write: {error.strerror or error}{needed}",
            remedy="name a folder on another disk with {cache}, or take less with {cache_size} or "
            "{num_tokens}",
        )

    def _names(self) -> list[str]:
        return [path.name for path in self.folder.iterdir()]


def _allocate(file: BinaryIO, num_bytes: int) -> None:
    """Take room for a file on the disk, as far as the platform can."""
    if hasattr(os, "posix_fallocate") and num_bytes:
        os.posix_fallocate(file.fileno(), 0, num_bytes)
    else:
        file.truncate(num_bytes)
