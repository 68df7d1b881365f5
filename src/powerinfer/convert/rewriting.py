"""Writing a model again with some tensors changed: what packing and quantizing have in common."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from powerinfer.errors import GGUFError
from powerinfer.gguf import GGUFFile, Tensor, TensorSpec, keys, write_gguf
from powerinfer.gguf.value_types import DEFAULT_ALIGNMENT
from powerinfer.quant import type_of_name

__all__ = ["Progress", "StoredTensor", "check_is_not_source", "copied", "left_out", "write_model"]

Progress = Callable[[int, int], None]
"""Called with bytes written so far and in all."""

# A calibration is of the very bytes of a model, and would be refused beside others.
_LEFT_OUT = {keys.SPLIT_NO, keys.SPLIT_COUNT, keys.SPLIT_TENSORS_COUNT, keys.CALIBRATION}

# One report to the caller, and one write, per this many bytes of a copied tensor.
_SLICE_BYTES = 16 << 20


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of the file to be.

    Attributes:
        name: there.
        shape: outermost dimension first.
        format: there.
        chunks: makes the bytes, when they are to be written.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    chunks: Callable[[], Iterator[npt.NDArray[np.uint8]]]

    @property
    def num_bytes(self) -> int:
        """Bytes it will take, without padding."""
        block = type_of_name(self.format)
        return prod(self.shape) // block.block_size * block.block_bytes if block else 0


def copied(tensor: Tensor) -> StoredTensor:
    """A tensor that stays as it is."""
    return StoredTensor(tensor.name, tensor.shape, tensor.format, partial(_slices, tensor.data))


def write_model(
    file: GGUFFile,
    path: Path,
    changes: Mapping[str, object],
    tensors: Sequence[StoredTensor],
    progress: Progress | None = None,
) -> None:
    """Write a model to one file, atomically; magic, alignment and other keys are kept.

    Args:
        file: the open model; its parts are joined, and a calibration in it is left out.
        path: the file to make.
        changes: metadata keys to add or replace.
        tensors: all of them, in order.
        progress: told how far the writing is.

    Raises:
        GGUFError: the file cannot be written.
    """
    kept = {key: value for key, value in file.metadata.items() if key not in _LEFT_OUT}
    write_gguf(
        path,
        {**kept, **changes},
        _reporting(tensors, progress),
        magic=file.magic,
        alignment=file.get_int(keys.ALIGNMENT, DEFAULT_ALIGNMENT),
        types={key: each for key, each in file.types.items() if key not in changes},
    )


def left_out(file: GGUFFile) -> list[str]:
    """What to tell users that `write_model` does not keep."""
    if keys.CALIBRATION not in file.metadata:
        return []
    return [
        "the calibration in the file is left out, as it belongs to the old weights; run "
        "`powerinfer calibrate` again"
    ]


def check_is_not_source(file: GGUFFile, path: Path) -> None:
    """Check that a file to be made is none of those that are read.

    Raises:
        GGUFError: it is.
    """
    for source in file.paths:
        with suppress(OSError):
            if source.samefile(path):
                raise GGUFError(f"{path}: is the model being read; choose another output file")


def _slices(data: npt.NDArray[np.uint8]) -> Iterator[npt.NDArray[np.uint8]]:
    for start in range(0, len(data), _SLICE_BYTES):
        yield data[start : start + _SLICE_BYTES]


def _reporting(stored: Sequence[StoredTensor], progress: Progress | None) -> Iterator[TensorSpec]:
    """Turn tensors into what the writer takes, with every chunk reported once it is written."""
    total = sum(tensor.num_bytes for tensor in stored)
    done = 0

    def reported(tensor: StoredTensor) -> Iterator[npt.NDArray[np.uint8]]:
        nonlocal done
        for chunk in tensor.chunks():
            yield chunk
            done += chunk.nbytes
            if progress is not None:
                progress(done, total)

    for tensor in stored:
        yield tensor.name, tensor.shape, tensor.format, partial(reported, tensor)
