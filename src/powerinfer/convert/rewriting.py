"""Writing a model again with some tensors changed, for packing and quantizing."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from powerinfer._replacing import find_target
from powerinfer.errors import GGUFError
from powerinfer.gguf import GGUFFile, Tensor, TensorSpec, keys, open_gguf, write_gguf
from powerinfer.gguf.value_types import DEFAULT_ALIGNMENT
from powerinfer.quant import type_of_name

__all__ = [
    "Progress",
    "StoredTensor",
    "check_target",
    "copied",
    "left_out",
    "reporting",
    "write_model",
]

Progress = Callable[[int, int], None]
"""Called with (bytes written, bytes in all)."""

# A calibration belongs to the exact bytes of a model and would be rejected with others.
_LEFT_OUT = {keys.SPLIT_NO, keys.SPLIT_COUNT, keys.SPLIT_TENSORS_COUNT, keys.CALIBRATION}

# Bytes of a copied tensor per write and progress report.
_SLICE_BYTES = 16 << 20


@dataclass(frozen=True)
class StoredTensor:
    """A tensor to write; `chunks` yields its bytes."""

    name: str
    shape: tuple[int, ...]
    format: str
    chunks: Callable[[], Iterator[npt.NDArray[np.uint8]]]

    @property
    def num_bytes(self) -> int:
        """Size without padding."""
        block = type_of_name(self.format)
        return prod(self.shape) // block.block_size * block.block_bytes if block else 0


def copied(tensor: Tensor) -> StoredTensor:
    """Describe a tensor that is copied unchanged."""
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
        file: open model; its parts are joined, and its calibration is dropped.
        changes: metadata keys to add or replace.

    Raises:
        GGUFError: the file cannot be written.
    """
    kept = {key: value for key, value in file.metadata.items() if key not in _LEFT_OUT}
    write_gguf(
        path,
        {**kept, **changes},
        reporting(tensors, progress),
        magic=file.magic,
        alignment=file.get_int(keys.ALIGNMENT, DEFAULT_ALIGNMENT),
        types={key: each for key, each in file.types.items() if key not in changes},
    )


def left_out(file: GGUFFile) -> list[str]:
    """Messages about what `write_model` drops."""
    if keys.CALIBRATION not in file.metadata:
        return []
    return [
        "the calibration in the file is left out, as it belongs to the old weights; run "
        "`powerinfer calibrate` again"
    ]


def check_target(file: GGUFFile, path: Path, *, key: str, writer: str, remedy: str) -> None:
    """Check before computing that at most an older result would be lost.

    Args:
        key: metadata key of all files that the writer makes.

    Raises:
        GGUFError: `path` is one of the source files, or a file of another writer.
    """
    target = find_target(path, error=GGUFError)
    for source in file.paths:
        with suppress(OSError):
            if source.samefile(path):
                raise GGUFError(f"{path}: is the model being read; choose another output file")
    if target.exists() and target.stat().st_size and not _has_key(target, key):
        raise GGUFError(f"{path}: already exists and was not written by {writer}", remedy=remedy)


def _has_key(path: Path, key: str) -> bool:
    try:
        return key in open_gguf(path).metadata
    except GGUFError:
        return False


def _slices(data: npt.NDArray[np.uint8]) -> Iterator[npt.NDArray[np.uint8]]:
    for start in range(0, len(data), _SLICE_BYTES):
        yield data[start : start + _SLICE_BYTES]


def reporting(stored: Sequence[StoredTensor], progress: Progress | None) -> Iterator[TensorSpec]:
    """Yield the writer's input; every chunk is reported after it is written."""
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
