"""Copies of a model with other metadata, which GGUF cannot change in place."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from powerinfer.errors import GGUFError
from powerinfer.gguf import keys
from powerinfer.gguf.file import GGUFFile, Tensor
from powerinfer.gguf.value_types import DEFAULT_ALIGNMENT
from powerinfer.gguf.writer import TensorSpec, write_gguf

__all__ = ["rewrite_metadata"]

# Bytes per write and progress report.
_SLICE_BYTES = 16 << 20


def rewrite_metadata(
    file: GGUFFile,
    path: Path,
    changes: Mapping[str, object],
    progress: Callable[[int, int], None] | None = None,
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
    total = sum(tensor.num_bytes for tensor in file.tensors.values())
    done = 0

    def chunks(tensor: Tensor) -> Iterator[npt.NDArray[np.uint8]]:
        nonlocal done
        for start in range(0, tensor.num_bytes, _SLICE_BYTES):
            chunk = tensor.data[start : start + _SLICE_BYTES]
            yield chunk
            done += len(chunk)
            if progress is not None:
                progress(done, total)

    specs: list[TensorSpec] = [
        (tensor.name, tensor.shape, tensor.format, partial(chunks, tensor))
        for tensor in file.tensors.values()
    ]
    write_gguf(
        path,
        {**file.metadata, **changes},
        specs,
        magic=file.magic,
        alignment=file.get_int(keys.ALIGNMENT, DEFAULT_ALIGNMENT),
        types={key: value_type for key, value_type in file.types.items() if key not in changes},
    )
