"""Model files written from another one, with other metadata or tensors."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from powerinfer.errors import GGUFError
from powerinfer.gguf import keys
from powerinfer.gguf.file import GGUFFile, Tensor
from powerinfer.gguf.value_types import DEFAULT_ALIGNMENT
from powerinfer.gguf.writer import TensorSpec, write_gguf
from powerinfer.quant import type_of_name

__all__ = ["Progress", "StoredTensor", "copied", "reporting", "rewrite", "rewrite_metadata"]

Progress = Callable[[int, int], None]
"""Called with (bytes written, bytes in all)."""

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


def rewrite_metadata(
    file: GGUFFile, path: Path, changes: Mapping[str, object], progress: Progress | None = None
) -> None:
    """Write a copy of a model with metadata keys added or replaced, atomically.

    Args:
        file: an open model of one file; magic, tensors and alignment are kept.
        path: target; it may be the model itself, which is replaced at the end. `file` then still
            shows the old one.
        changes: values by key, see `write_gguf`.
        progress: called with bytes written and total bytes.

    Raises:
        GGUFError: the model is split, or the file cannot be written.
    """
    if len(file.paths) > 1:
        raise GGUFError(
            f"{file.path}: is one of {len(file.paths)} parts; only models in one file can be "
            "rewritten"
        )
    rewrite(file, path, changes, [*map(copied, file.tensors.values())], progress)


def rewrite(
    file: GGUFFile,
    path: Path,
    changes: Mapping[str, object],
    tensors: Sequence[StoredTensor],
    progress: Progress | None = None,
    *,
    dropped: Collection[str] = (),
) -> None:
    """Write a model to one file, atomically; magic, alignment and other keys are kept.

    Args:
        file: open model; its parts are joined.
        changes: metadata keys to add or replace.
        dropped: metadata keys to leave out, unless they are among the changes.

    Raises:
        GGUFError: the file cannot be written.
    """
    kept = {key: value for key, value in file.metadata.items() if key not in dropped}
    write_gguf(
        path,
        {**kept, **changes},
        reporting(tensors, progress),
        magic=file.magic,
        alignment=file.get_int(keys.ALIGNMENT, DEFAULT_ALIGNMENT),
        types={key: each for key, each in file.types.items() if key not in changes},
    )


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


def _slices(data: npt.NDArray[np.uint8]) -> Iterator[npt.NDArray[np.uint8]]:
    for start in range(0, len(data), _SLICE_BYTES):
        yield data[start : start + _SLICE_BYTES]
