"""Files on disk between collecting and training, from which a killed run resumes."""

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
from powerinfer._replacing import remove_abandoned
from powerinfer.errors import PowerInferError
from powerinfer.train.folder_lock import lock_folder
from powerinfer.train.predictors.layer_data import ExpertArray, HalfArray
from powerinfer.train.predictors.sizes import PredictorSizes
from powerinfer.values import ByteArray

__all__ = ["Cache", "LayerShape"]

_OURS = re.compile(
    r"(run|collected)\.json|lock|windows\.i32|survey\.npz|layer_\d+\.(inputs|fired|experts|fit)"
)
_LARGEST_JSON = 1 << 20


@dataclass(frozen=True, slots=True)
class LayerShape:
    """The sizes of the collected data of a layer."""

    num_tokens: int
    sizes: PredictorSizes

    @property
    def widths(self) -> dict[str, int]:
        """Bytes per token in each file, by the end of its name."""
        sizes = self.sizes
        found = {"inputs": 2 * sizes.width, "fired": sizes.fired_bytes}
        return found | ({"experts": 2 * sizes.num_used} if sizes.num_experts > 1 else {})

    @property
    def num_bytes(self) -> int:
        """Bytes of all files of a layer."""
        return self.num_tokens * sum(self.widths.values())


class Cache:
    """A folder of one run, all of which can be made again.

    `windows.i32` is the text, `survey.npz` the survey, `layer_N.inputs`, `layer_N.fired` and
    `layer_N.experts` the collected data, `layer_N.fit` the state of a layer's training.
    """

    def __init__(self, folder: Path, recipe: str) -> None:
        """Open a folder, or make it; files of others in it are left alone.

        `recipe` is the text of everything that decides the collected data.
        """
        self.folder = folder
        busy = f"{folder}: another process uses it; wait for it, or name another folder"
        try:
            self._lock = lock_folder(folder, busy)
        except OSError as error:
            raise self._problem(error) from None
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
        """Path of a file in it."""
        return self.folder / name

    def close(self) -> None:
        """Let other processes use it."""
        self._lock.close()

    def remove(self) -> None:
        """Remove all files of this run, and the folder if nothing else is in it."""
        # The files that say whose folder this is go last.
        names = [name for name in self._names() if _OURS.fullmatch(name)]
        for name in sorted(names, key=lambda name: (name in ("run.json", "lock"), name == "lock")):
            with suppress(OSError):
                self.path(name).unlink()
        self.close()
        with suppress(OSError):
            self.folder.rmdir()

    def remove_layer(self, number: int) -> None:
        """Remove the collected data of a layer, and the state of its training."""
        for end in ("inputs", "fired", "experts", "fit"):
            self.path(f"layer_{number}.{end}").unlink(missing_ok=True)

    def remove_layers_but(self, kept: Sequence[int]) -> None:
        """Remove files that a killed run left for other layers than these."""
        for name in self._names():
            found = re.fullmatch(r"layer_(\d+)\..+", name)
            if found and int(found[1]) not in kept:
                self.remove_layer(int(found[1]))

    def collected(self) -> tuple[range, int]:
        """The layers of the current pass, by place among all that have predictors.

        Also returns the number of windows collected for each.
        """
        path = self.path("collected.json")
        if not path.exists():
            return range(0), 0
        content = read_small_file(path, _LARGEST_JSON, noun="state", error=PowerInferError)
        try:
            state = json.loads(content)
            return range(int(state["first"]), int(state["end"])), int(state["windows"])
        except (ValueError, KeyError, TypeError):
            raise PowerInferError(f"{path}: is damaged; remove the folder to start again") from None

    def has_layers(self, numbers: Sequence[int], shape: LayerShape) -> bool:
        """Check that the files of these layers exist."""
        return all(
            self.path(f"layer_{number}.{end}").exists()
            for number in numbers
            for end in shape.widths
        )

    def note_collected(self, layers: range, windows: int) -> None:
        """Record which windows of which layers are safely on disk."""
        state = json.dumps({"first": layers.start, "end": layers.stop, "windows": windows})
        write_atomically(self.path("collected.json"), state.encode(), error=PowerInferError)

    def reserve(self, number: int, shape: LayerShape) -> None:
        """Allocate the files of a layer, so that a full disk shows at once."""
        for end, width in shape.widths.items():
            try:
                with self.path(f"layer_{number}.{end}").open("wb") as file:
                    _allocate(file, shape.num_tokens * width)
            except OSError as error:
                raise self._problem(error, shape) from None

    def layer(
        self, number: int, shape: LayerShape
    ) -> tuple[HalfArray, ByteArray, ExpertArray | None]:
        """Map the collected data of a layer: inputs, bits and experts as `LayerData` has them."""
        try:
            found = {
                end: np.memmap(
                    self.path(f"layer_{number}.{end}"), "u1", "r", shape=(shape.num_tokens, width)
                )
                for end, width in shape.widths.items()
            }
        except (OSError, ValueError) as error:
            raise PowerInferError(
                f"{self.folder}: layer_{number} cannot be read ({error!s:.100}); remove the folder "
                "to collect it again"
            ) from None
        experts = found["experts"].view("<i2") if "experts" in found else None
        return found["inputs"].view("<f2"), found["fired"], experts

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
    """Allocate a file's blocks on the disk, as far as the platform can."""
    if hasattr(os, "posix_fallocate") and num_bytes:
        os.posix_fallocate(file.fileno(), 0, num_bytes)
    else:
        file.truncate(num_bytes)
