"""Layouts: how the tensors of a model are stored in a packed file.

The layouts themselves are the files in ``layouts/``; a new one is one new file there.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from powerinfer import _plugins
from powerinfer.gguf import GGUFFile, Tensor
from powerinfer.gguf.rewrite import StoredTensor

__all__ = ["KEPT_FORMATS", "ErrorSum", "Layout", "PackedTensor", "get_layout", "layouts"]

_PACKAGE = "powerinfer.convert.layouts"

KEPT_FORMATS = frozenset({"f32", "f16", "bf16", "q4_0", "q8_0", "mxfp4"})
"""Formats kept by matrices whose blocks have to run along the other dimension.

The rest become Q8_0, which loses less than encoding them a second time.
"""


@dataclass
class ErrorSum:
    """Accumulated change of a tensor's numbers by re-encoding."""

    squared_error: float = 0.0
    squared_norm: float = 0.0

    def add(self, before: npt.NDArray[np.float32], after: npt.NDArray[np.float32]) -> None:
        """Add numbers before and after re-encoding, of the same shape."""
        difference = after.astype(np.float64) - before
        self.squared_error += float(np.vdot(difference, difference))
        self.squared_norm += float(np.vdot(before.astype(np.float64), before))

    @property
    def relative(self) -> float:
        """Root of the squared error relative to the squared norm; 0 if nothing changed."""
        if self.squared_error == 0.0:
            return 0.0
        return math.sqrt(self.squared_error / self.squared_norm) if self.squared_norm else math.inf


@dataclass(frozen=True)
class PackedTensor(StoredTensor):
    """A tensor as stored in the packed file.

    Attributes:
        sources: tensors it is made of, all of one format.
        error: None if the numbers do not change; else filled while `chunks` runs.
    """

    sources: tuple[Tensor, ...]
    error: ErrorSum | None = None

    @property
    def source_format(self) -> str:
        """Format of the source tensors."""
        return self.sources[0].format


@dataclass(frozen=True)
class Layout:
    """A layout for storing a model.

    Attributes:
        name: value of the metadata key ``powerinfer.layout``; equal to the file name.
        pack: returns the tensors of the packed file in order; a `Tensor` is copied unchanged.
    """

    name: str
    pack: Callable[[GGUFFile], tuple[Tensor | PackedTensor, ...]]


def layouts() -> tuple[str, ...]:
    """Names of all layouts, sorted."""
    return _plugins.keys(_PACKAGE)


def get_layout(name: str) -> Layout:
    """Return a layout.

    Raises:
        UnsupportedError: unknown name; the message lists the known ones.
    """
    found = _plugins.load(_PACKAGE, name, "LAYOUT", what="layout")
    if not isinstance(found, Layout):
        raise TypeError(f"{_PACKAGE}.{name}.LAYOUT is a {type(found).__name__}")
    return found
