"""Write a model in a faster layout; see `powerinfer.convert.layouts`."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
import numpy.typing as npt

from powerinfer._replacing import find_target, make_folder_of
from powerinfer.convert.layout import PackedTensor, get_layout
from powerinfer.errors import GGUFError
from powerinfer.gguf import GGUFFile, Tensor, TensorSpec, keys, open_gguf, write_gguf
from powerinfer.gguf.value_types import DEFAULT_ALIGNMENT
from powerinfer.quant import type_of_name

__all__ = ["PackReport", "Progress", "pack"]

Progress = Callable[[int, int], None]
"""Called with bytes written so far and in all."""

_ROWS = (".ffn_down_t.weight", ".ffn_down_exps_t.weight")
_SPLIT_KEYS = {keys.SPLIT_NO, keys.SPLIT_COUNT, keys.SPLIT_TENSORS_COUNT}


# One report to the caller, and one write, per this many bytes of a copied tensor.
_SLICE_BYTES = 16 << 20


@dataclass(frozen=True)
class _Stored:
    """One tensor of the file to be."""

    name: str
    shape: tuple[int, ...]
    format: str
    chunks: Callable[[], Iterator[npt.NDArray[np.uint8]]]

    @property
    def num_bytes(self) -> int:
        """Bytes it will take, without padding."""
        block = type_of_name(self.format)
        return prod(self.shape) // block.block_size * block.block_bytes if block else 0


@dataclass(frozen=True)
class PackReport:
    """What packing did.

    Attributes:
        path: the file written.
        layout: its layout.
        packed: the tensors that are stored differently, in file order.
        num_bytes: size of the file.
    """

    path: Path
    layout: str
    packed: tuple[PackedTensor, ...]
    num_bytes: int

    @property
    def is_exact(self) -> bool:
        """Whether every number is what it was."""
        return all(tensor.error is None for tensor in self.packed)

    @property
    def largest_error(self) -> float:
        """Largest relative error of a tensor that was encoded again."""
        return max((tensor.error.relative for tensor in self.packed if tensor.error), default=0.0)


def pack(
    file: GGUFFile,
    path: Path,
    *,
    layout: str = "rows",
    metadata: Mapping[str, object] | None = None,
    progress: Progress | None = None,
) -> PackReport:
    """Write a model to one file in another layout, atomically.

    Args:
        file: the open model; its magic, metadata and alignment are kept, parts are joined.
        path: the file to make, with its folder; where it exists, only one that this function wrote
            is replaced.
        layout: name of a layout.
        metadata: keys to add or replace.
        progress: told how far the writing is.

    Raises:
        UnsupportedError: no such layout, or a tensor type that it would have to encode again and
            that is not implemented.
        GGUFError: nothing to pack, `path` is the model itself or another file that would be lost,
            or it cannot be written.
        NumericsError: a tensor that must be encoded again holds NaN or infinity.
    """
    chosen = get_layout(layout)
    _check_target(file, path)
    tensors = chosen.pack(file)
    packed = tuple(tensor for tensor in tensors if isinstance(tensor, PackedTensor))
    if not packed:
        raise GGUFError(
            f"{file.path}: has no tensors for layout {layout} to change "
            f"(its layout: {file.get_str(keys.LAYOUT, 'rows' if _is_rows(file) else 'none')})"
        )
    specs = [_stored(tensor) for tensor in tensors]
    make_folder_of(path, error=GGUFError)
    _write(file, path, {keys.LAYOUT: layout, **(metadata or {})}, _reporting(specs, progress))
    return PackReport(path, layout, packed, path.stat().st_size)


def _write(
    file: GGUFFile, path: Path, added: Mapping[str, object], tensors: Iterator[TensorSpec]
) -> None:
    """Write the model with these tensors, and these keys added or replaced."""
    kept = {key: value for key, value in file.metadata.items() if key not in _SPLIT_KEYS}
    write_gguf(
        path,
        {**kept, **added},
        tensors,
        magic=file.magic,
        alignment=file.get_int(keys.ALIGNMENT, DEFAULT_ALIGNMENT),
        types={key: each for key, each in file.types.items() if key not in added},
    )


def _is_rows(file: GGUFFile) -> bool:
    return any(name.endswith(_ROWS) for name in file.tensors)


def _check_target(file: GGUFFile, path: Path) -> None:
    """Check, before packing, that nothing would be lost but an older packed file."""
    target = find_target(path, error=GGUFError)
    for source in file.paths:
        with suppress(OSError):
            if source.samefile(path):
                raise GGUFError(f"{path}: is the model being read; choose another output file")
    if target.exists() and target.stat().st_size and not _is_packed(target):
        raise GGUFError(
            f"{path}: already exists and was not written by pack",
            remedy="remove it, or name another file with {output}",
        )


def _is_packed(path: Path) -> bool:
    try:
        return keys.LAYOUT in open_gguf(path).metadata
    except GGUFError:
        return False


def _stored(tensor: Tensor | PackedTensor) -> _Stored:
    chunks = partial(_slices, tensor.data) if isinstance(tensor, Tensor) else tensor.chunks
    return _Stored(tensor.name, tensor.shape, tensor.format, chunks)


def _slices(data: npt.NDArray[np.uint8]) -> Iterator[npt.NDArray[np.uint8]]:
    for start in range(0, len(data), _SLICE_BYTES):
        yield data[start : start + _SLICE_BYTES]


def _reporting(stored: list[_Stored], progress: Progress | None) -> Iterator[TensorSpec]:
    """Turn tensors into what the writer takes, with every chunk reported once it is written."""
    total = sum(tensor.num_bytes for tensor in stored)
    done = 0

    def reported(tensor: _Stored) -> Iterator[npt.NDArray[np.uint8]]:
        nonlocal done
        for chunk in tensor.chunks():
            yield chunk
            done += chunk.nbytes
            if progress is not None:
                progress(done, total)

    for tensor in stored:
        yield tensor.name, tensor.shape, tensor.format, partial(reported, tensor)
