"""Importance matrices (squared inputs of each matrix) in llama.cpp's GGUF form.

A tensor NAME has the entries ``NAME.in_sum2``, f32[num_matrices, columns], with sums of squared
inputs per column, and ``NAME.counts``, f32[num_matrices, 1], with the number of inputs. Matrices of
experts have one row each; an expert never chosen has count 0. Three keys describe the text;
llama.cpp's quantizer rejects files without them.
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
    """Importance of one tensor's columns.

    Attributes:
        sums: f32[num_matrices, columns], sums of squares of inputs; finite, not negative.
        counts: f32[num_matrices], number of inputs.
    """

    sums: npt.NDArray[np.float32]
    counts: npt.NDArray[np.float32]

    def means(self) -> npt.NDArray[np.float32]:
        """f32[num_matrices, columns], means of squares; ones for a count of 0."""
        counts = self.counts[:, np.newaxis]
        ones = np.ones_like(self.sums)
        means: npt.NDArray[np.float32] = np.divide(self.sums, counts, out=ones, where=counts > 0)
        return means


@dataclass(frozen=True, slots=True, eq=False)
class ImportanceMatrix:
    """Importance matrix of a model, from `chunk_count` windows of `chunk_size` tokens."""

    entries: Mapping[str, Importance]
    datasets: tuple[str, ...]
    chunk_count: int
    chunk_size: int
    path: Path = field(default=Path("imatrix"))

    def of(self, tensor: Tensor) -> npt.NDArray[np.float32] | None:
        """f32[num_matrices, columns] for a model's tensor; None without an entry."""
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
    """Check before measuring that at most an older importance matrix would be lost.

    Raises:
        GGUFError: another file, or something that is not a file, is there.
    """
    target = find_target(path, error=GGUFError)
    if not target.exists() or not target.stat().st_size:
        return
    try:
        read_imatrix(target)
    except GGUFError:
        raise GGUFError(
            f"{path}: already exists and is not an importance matrix; name another file"
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
        GGUFError: the file cannot be read, is not an importance matrix, or holds invalid values.
    """
    try:
        file = open_gguf(path)
    except GGUFError as error:
        raise GGUFError(
            f"{error}; an importance matrix is a GGUF file, as `powerinfer imatrix` and "
            "llama-imatrix write them"
        ) from None
    if file.metadata.get(_TYPE, "imatrix") != "imatrix" or not _names(file):
        raise GGUFError(
            f"{file.path}: it is not an importance matrix; `powerinfer imatrix` makes one"
        )
    return ImportanceMatrix(
        {name: _entry(file, name) for name in _names(file)},
        tuple(file.get_strings(_DATASETS, [])),
        file.get_int(_CHUNK_COUNT, 0),
        file.get_int(_CHUNK_SIZE, 0),
        file.path,
    )


def _names(file: GGUFFile) -> list[str]:
    """List the tensors with an entry or half of one."""
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
