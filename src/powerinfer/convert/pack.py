"""Write a model in a faster layout; see `powerinfer.convert.layouts`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from powerinfer._replacing import find_target, make_folder_of
from powerinfer.convert.layout import PackedTensor, get_layout
from powerinfer.convert.rewriting import (
    Progress,
    StoredTensor,
    check_is_not_source,
    copied,
    write_model,
)
from powerinfer.errors import GGUFError
from powerinfer.gguf import GGUFFile, Tensor, keys, open_gguf

__all__ = ["PackReport", "PackedPredictors", "as_stored", "check_may_replace", "pack"]

_ROWS = (".ffn_down_t.weight", ".ffn_down_exps_t.weight")


@dataclass(frozen=True)
class PackedPredictors:
    """The predictors in a file of PowerInfer's own format.

    Attributes:
        architecture: under which the original runs the file.
        ranks: of each layer.
        threshold: of the scores; None where the file does not say, which means 0.
        share: of the predictors' parameters in those of the model without them.
    """

    architecture: str
    ranks: tuple[int, ...]
    threshold: float | None
    share: float


@dataclass(frozen=True)
class PackReport:
    """What packing did.

    Attributes:
        path: the file written.
        layout: its layout.
        packed: the tensors that are stored differently, in file order.
        num_bytes: size of the file.
        predictors: that were added.
        notes: what a user should know.
    """

    path: Path
    layout: str
    packed: tuple[PackedTensor, ...]
    num_bytes: int
    predictors: PackedPredictors | None = None
    notes: tuple[str, ...] = ()

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
    check_may_replace(file, path)
    tensors = chosen.pack(file)
    packed = tuple(tensor for tensor in tensors if isinstance(tensor, PackedTensor))
    if not packed:
        raise GGUFError(
            f"{file.path}: has no tensors for layout {layout} to change "
            f"(its layout: {file.get_str(keys.LAYOUT, 'rows' if _is_rows(file) else 'none')})"
        )
    make_folder_of(path, error=GGUFError)
    changes = {keys.LAYOUT: layout, **(metadata or {})}
    write_model(file, path, changes, [as_stored(tensor) for tensor in tensors], progress)
    return PackReport(path, layout, packed, path.stat().st_size)


def _is_rows(file: GGUFFile) -> bool:
    return any(name.endswith(_ROWS) for name in file.tensors)


def check_may_replace(file: GGUFFile, path: Path) -> None:
    """Check, before packing, that nothing would be lost but an older packed file.

    Raises:
        GGUFError: another file would be.
    """
    target = find_target(path, error=GGUFError)
    check_is_not_source(file, path)
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


def as_stored(tensor: Tensor | PackedTensor) -> StoredTensor:
    """What writing needs to know of a tensor."""
    if isinstance(tensor, Tensor):
        return copied(tensor)
    return StoredTensor(tensor.name, tensor.shape, tensor.format, tensor.chunks)
