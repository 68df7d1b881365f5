"""What a layout is: for the tensors of a model, how they are stored in the packed file.

The layouts themselves are the files in ``layouts/``; a new one is one new file there.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from powerinfer import _plugins
from powerinfer.gguf import GGUFFile, Tensor

__all__ = ["KEPT_FORMATS", "ErrorSum", "Layout", "PackedTensor", "get_layout", "layouts"]

_PACKAGE = "powerinfer.convert.layouts"

KEPT_FORMATS = frozenset({"f32", "f16", "bf16", "q4_0", "q8_0", "mxfp4"})
"""Formats that matrices keep whose blocks have to run along the other dimension; the rest become
Q8_0, which loses less than encoding them a second time."""


@dataclass
class ErrorSum:
    """Sums, over the numbers of a tensor, what encoding them again changed."""

    squared_error: float = 0.0
    squared_norm: float = 0.0

    def add(self, before: npt.NDArray[np.float32], after: npt.NDArray[np.float32]) -> None:
        """Count some numbers before and after; any equal shapes."""
        difference = after.astype(np.float64) - before
        self.squared_error += float(np.vdot(difference, difference))
        self.squared_norm += float(np.vdot(before.astype(np.float64), before))

    @property
    def relative(self) -> float:
        """Root of the summed squared error over the summed squares: 0 where nothing changed."""
        if self.squared_error == 0.0:
            return 0.0
        return math.sqrt(self.squared_error / self.squared_norm) if self.squared_norm else math.inf


@dataclass(frozen=True)
class PackedTensor:
    """One tensor as the packed file stores it.

    Attributes:
        name: its new name.
        shape: its new shape, outermost dimension first.
        format: its new format.
        chunks: makes the bytes, when they are to be written.
        sources: the tensors it is made of, all of one format.
        error: None where the numbers stay what they were; else filled while `chunks` runs.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    chunks: Callable[[], Iterator[npt.NDArray[np.uint8]]]
    sources: tuple[Tensor, ...]
    error: ErrorSum | None = field(default=None)

    @property
    def source_format(self) -> str:
        """Format of the tensors it is made of."""
        return self.sources[0].format


@dataclass(frozen=True)
class Layout:
    """A layout in which a model can be stored.

    Attributes:
        name: value of the metadata key ``powerinfer.layout``; equal to the file name.
        pack: the tensors of a model's packed file, in order; a `Tensor` is copied as it is.
    """

    name: str
    pack: Callable[[GGUFFile], tuple[Tensor | PackedTensor, ...]]


def layouts() -> tuple[str, ...]:
    """Names of all layouts, sorted."""
    return _plugins.keys(_PACKAGE)


def get_layout(name: str) -> Layout:
    """Return a layout.

    Raises:
        UnsupportedError: there is none of this name; lists those there are.
    """
    found = _plugins.load(_PACKAGE, name, "LAYOUT", what="layout")
    if not isinstance(found, Layout):
        raise TypeError(f"{_PACKAGE}.{name}.LAYOUT is a {type(found).__name__}")
    return found
