"""Plan of quantizing each tensor, decided before anything is written."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerinfer.convert.layout import ErrorSum
from powerinfer.convert.quantize.file_types import FileType
from powerinfer.convert.quantize.imatrix import ImportanceMatrix
from powerinfer.convert.quantize.mixture import KeptFormat, choose_formats, is_row_per_neuron
from powerinfer.errors import GGUFError, UnsupportedError
from powerinfer.gguf import GGUFFile, Tensor
from powerinfer.quant import format_names, get_format

__all__ = ["QuantizeOptions", "QuantizedTensor", "importance_of", "plan_tensors"]


@dataclass(frozen=True)
class QuantizeOptions:
    """Settings of quantizing.

    Attributes:
        kept: requested formats of some tensors, see `choose_formats`.
        imatrix: weights the columns of the matrices it has entries for.
        kernels: instruction set of the encoders, which all give the same bytes; None for the best.
    """

    file_type: FileType
    threads: int
    kept: Sequence[KeptFormat] = ()
    imatrix: ImportanceMatrix | None = None
    kernels: str | None = None


@dataclass(frozen=True)
class QuantizedTensor:
    """Result of quantizing one tensor; `error` is filled during writing."""

    name: str
    shape: tuple[int, ...]
    source_format: str
    format: str
    has_importance: bool
    error: ErrorSum

    @property
    def is_again(self) -> bool:
        """It was quantized before and is re-encoded."""
        return self.format != self.source_format and get_format(self.source_format).block_size > 1


def plan_tensors(file: GGUFFile, options: QuantizeOptions) -> list[tuple[Tensor, QuantizedTensor]]:
    """Pair each tensor with its result."""
    imatrix = options.imatrix
    chosen = choose_formats(
        file, options.file_type, options.kept, has_importance=imatrix is not None
    )
    if not chosen:
        raise GGUFError(f"{file.path}: {file.missing_weights or 'it has no matrix'}")
    plan = []
    for tensor in file.tensors.values():
        target = chosen.get(tensor.name, tensor.format)
        if target != tensor.format:
            _check_formats(tensor, target)
        is_weighted = tensor.name in chosen and importance_of(tensor, imatrix) is not None
        made = QuantizedTensor(
            tensor.name, tensor.shape, tensor.format, target, is_weighted, ErrorSum()
        )
        plan.append((tensor, made))
    if imatrix is not None and not any(made.has_importance for _, made in plan):
        raise GGUFError(
            f"{imatrix.path}: has no entry for any matrix of {file.path}: it was made from "
            "another model"
        )
    return plan


def _check_formats(tensor: Tensor, target: str) -> None:
    """Check before writing that a tensor can be read and encoded."""
    if tensor.format not in format_names():
        raise UnsupportedError(
            f"{tensor.file}: tensor {tensor.name} is {tensor.format}, which cannot be read; "
            f"supported are {', '.join(format_names())}"
        )
    if not get_format(target).can_encode:
        raise UnsupportedError(f"tensor {tensor.name}: {target} has no encoder")


def importance_of(
    tensor: Tensor, imatrix: ImportanceMatrix | None
) -> npt.NDArray[np.float32] | None:
    """Column weights of each matrix of a tensor; None for equal weights."""
    if imatrix is None or is_row_per_neuron(tensor.name):
        return None
    return imatrix.of(tensor)
