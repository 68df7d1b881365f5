"""Importance matrices: how large the inputs of each matrix are, in llama.cpp's GGUF form.

For a tensor NAME the file has ``NAME.in_sum2``, f32[num_matrices, columns], sums of the squares of
the inputs of each column, and ``NAME.counts``, f32[num_matrices, 1], the number of inputs summed.
Matrices of experts have one row each; an expert that no token chose has the count 0. Three keys
describe the text; llama.cpp's quantizer refuses files without them.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from powerinfer._replacing import find_target
from powerinfer.errors import GGUFError
from powerinfer.gguf import GGUFFile, Tensor, TensorSpec, encode_tensor, open_gguf, write_gguf

__all__ = [
    "Importance",
    "ImportanceMatrix",
    "check_imatrix_target",
    "read_imatrix",
    "write_imatrix",
]

_TYPE: Final = "general.type"
_DATASETS: Final = "imatrix.datasets"
_CHUNK_COUNT: Final = "imatrix.chunk_count"
_CHUNK_SIZE: Final = "imatrix.chunk_size"
_SUMS, _COUNTS = ".in_sum2", ".counts"
_OF_ONE_EXPERT = re.compile(r"(blk\.[0-9]+\.ffn_(?:gate|up|down))\.([0-9]{1,6})\.weight")


@dataclass(frozen=True, slots=True, eq=False)
class Importance:
    """The importance of one tensor's columns.

    Attributes:
        sums: f32[num_matrices, columns], sums of squares of inputs; finite, not negative.
        counts: f32[num_matrices], inputs that were summed.
    """

    sums: npt.NDArray[np.float32]
    counts: npt.NDArray[np.float32]

    def means(self) -> npt.NDArray[np.float32]:
        """Means of squares f32[num_matrices, columns]; ones where nothing was counted."""
        counts = self.counts[:, np.newaxis]
        ones = np.ones_like(self.sums)
        means: npt.NDArray[np.float32] = np.divide(self.sums, counts, out=ones, where=counts > 0)
        return means


@dataclass(frozen=True, slots=True, eq=False)
class ImportanceMatrix:
    """The importance of all tensors of a model.

    Attributes:
        entries: by name of the tensor.
        datasets: names of the texts.
        chunk_count: windows of text.
        chunk_size: tokens in each.
        path: its file, for messages.
    """

    entries: Mapping[str, Importance]
    datasets: tuple[str, ...]
    chunk_count: int
    chunk_size: int
    path: Path = field(default=Path("imatrix"))

    def of(self, tensor: Tensor) -> npt.NDArray[np.float32] | None:
        """Means f32[num_matrices, columns] for a tensor of a model; None if it has no entry.

        Raises:
            GGUFError: the entry belongs to a tensor of another shape.
        """
        single = _OF_ONE_EXPERT.fullmatch(tensor.name)
        name = tensor.name if single is None else f"{single[1]}_exps.weight"
        found = self.entries.get(name)
        if found is None:
            return None
        means = found.means()
        if single is not None:
            means = means[int(single[2]) : int(single[2]) + 1]
        count, columns = prod(tensor.shape[:-2]), tensor.shape[-1]
        if means.size != count * columns:
            raise GGUFError(
                f"{self.path}: {name} has {found.sums.shape[0]} rows of {found.sums.shape[1]} "
                f"numbers, the model's {tensor.name} needs {count} of {columns}: it was made from "
                "another model"
            )
        return means.reshape(count, columns)


def check_imatrix_target(path: Path) -> None:
    """Check, before measuring, that nothing would be lost but an older importance matrix.

    Raises:
        GGUFError: there is another file, or something that is no file.
    """
    target = find_target(path, error=GGUFError)
    if not target.exists() or not target.stat().st_size:
        return
    try:
        read_imatrix(target)
    except GGUFError:
        raise GGUFError(
            f"{path}: already exists and is no importance matrix; name another file"
        ) from None


def write_imatrix(path: str | os.PathLike[str], matrix: ImportanceMatrix) -> None:
    """Write an importance matrix, atomically."""
    tensors: list[TensorSpec] = []
    for name, entry in sorted(matrix.entries.items()):
        tensors.append(encode_tensor(f"{name}{_SUMS}", entry.sums))
        tensors.append(encode_tensor(f"{name}{_COUNTS}", entry.counts[:, np.newaxis]))
    metadata = {
        _TYPE: "imatrix",
        _DATASETS: list(matrix.datasets),
        _CHUNK_COUNT: matrix.chunk_count,
        _CHUNK_SIZE: matrix.chunk_size,
    }
    write_gguf(path, metadata, tensors)


def read_imatrix(path: str | os.PathLike[str]) -> ImportanceMatrix:
    """Read an importance matrix.

    Raises:
        GGUFError: the file cannot be read, is no importance matrix, or has impossible values.
    """
    try:
        file = open_gguf(path)
    except GGUFError as error:
        raise GGUFError(
            f"{error}; an importance matrix is a GGUF file, as `powerinfer imatrix` and "
            "llama-imatrix write them"
        ) from None
    if file.metadata.get(_TYPE, "imatrix") != "imatrix" or not _names(file):
        raise GGUFError(f"{file.path}: it is no importance matrix; `powerinfer imatrix` makes one")
    return ImportanceMatrix(
        {name: _entry(file, name) for name in _names(file)},
        tuple(file.get_strings(_DATASETS, [])),
        file.get_int(_CHUNK_COUNT, 0),
        file.get_int(_CHUNK_SIZE, 0),
        file.path,
    )


def _names(file: GGUFFile) -> list[str]:
    """Tensors with an entry, or half of one, in a file."""
    names = (
        name.removesuffix(end)
        for name in file.tensors
        for end in (_SUMS, _COUNTS)
        if name.endswith(end)
    )
    return list(dict.fromkeys(names))


def _entry(file: GGUFFile, name: str) -> Importance:
    sums, counts = (_numbers(file, f"{name}{end}") for end in (_SUMS, _COUNTS))
    if not counts.size or not sums.size or sums.size % counts.size:
        raise GGUFError(
            f"{file.path}: tensor {name}{_SUMS} has {sums.size} numbers for {counts.size} counts"
        )
    return Importance(sums.reshape(counts.size, -1), counts.reshape(-1))


def _numbers(file: GGUFFile, name: str) -> npt.NDArray[np.float32]:
    tensor = file.tensor(name)
    if tensor.format != "f32":
        raise GGUFError(f"{file.path}: tensor {name} is {tensor.format}; expected f32")
    values = tensor.decode()
    if not (np.isfinite(values) & (values >= 0)).all():
        raise GGUFError(f"{file.path}: tensor {name} holds numbers that are negative or not finite")
    return values
