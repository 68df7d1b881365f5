"""Packing a model in a faster layout; see `powerinfer.convert.layouts`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from powerinfer._replacing import make_folder_of
from powerinfer.convert.layout import PackedTensor, get_layout
from powerinfer.convert.rewriting import check_target, write_model
from powerinfer.errors import GGUFError
from powerinfer.gguf import GGUFFile, Tensor, keys
from powerinfer.gguf.rewrite import Progress, StoredTensor, copied

__all__ = ["PackReport", "PackedPredictors", "check_may_replace", "pack"]

_ROWS = (".ffn_down_t.weight", ".ffn_down_exps_t.weight")


@dataclass(frozen=True)
class PackedPredictors:
    """Predictors in a file.

    Attributes:
        architecture: architecture in the original's terms, if it can read the file.
        threshold: threshold of the scores; None if the file has none, which means 0.
        share: predictors' parameters relative to the model's without them.
        is_original: the file is in PowerInfer's own format.
    """

    architecture: str
    ranks: tuple[int, ...]
    threshold: float | None
    share: float
    is_original: bool = True


@dataclass(frozen=True)
class PackReport:
    """Result of packing.

    Attributes:
        packed: tensors stored differently, in file order.
    """

    path: Path
    layout: str
    packed: tuple[PackedTensor, ...]
    num_bytes: int
    predictors: PackedPredictors | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_exact(self) -> bool:
        """No number has changed."""
        return all(tensor.error is None for tensor in self.packed)

    @property
    def largest_error(self) -> float:
        """Largest relative error of a re-encoded tensor."""
        return max((tensor.error.relative for tensor in self.packed if tensor.error), default=0.0)


def pack(
    file: GGUFFile,
    path: Path,
    *,
    layout: str = "rows",
    metadata: Mapping[str, object] | None = None,
    added: Sequence[StoredTensor] = (),
    progress: Progress | None = None,
) -> PackReport:
    """Write a model to one file in another layout, atomically.

    Args:
        file: open model; its magic, metadata and alignment are kept, its parts are joined.
        path: file to write (its folder is created); only a file that this function wrote is
            replaced.
        added: further tensors, which take the place of those with the same names.

    Raises:
        UnsupportedError: unknown layout, or a tensor type that cannot be re-encoded.
        GGUFError: nothing to pack, `path` is the model or another file that would be lost, or it
            cannot be written.
        NumericsError: a tensor to re-encode holds NaN or infinity.
    """
    chosen = get_layout(layout)
    check_may_replace(file, path)
    new = {tensor.name for tensor in added}
    tensors = tuple(tensor for tensor in chosen.pack(file) if tensor.name not in new)
    packed = tuple(tensor for tensor in tensors if isinstance(tensor, PackedTensor))
    if not packed and not added:
        default = "rows" if any(name.endswith(_ROWS) for name in file.tensors) else "none"
        raise GGUFError(
            f"{file.path}: has no tensors for layout {layout} to change "
            f"(its layout: {file.get_str(keys.LAYOUT, default)})"
        )
    make_folder_of(path, error=GGUFError)
    changes = {keys.LAYOUT: layout, **(metadata or {})}
    stored = [copied(tensor) if isinstance(tensor, Tensor) else tensor for tensor in tensors]
    stored += added
    write_model(file, path, changes, stored, progress)
    return PackReport(path, layout, packed, path.stat().st_size)


def check_may_replace(file: GGUFFile, path: Path) -> None:
    """Check before packing that at most an older packed file would be lost.

    Raises:
        GGUFError: another file would be lost.
    """
    remedy = "remove it, or name another file with {output}"
    check_target(file, path, key=keys.LAYOUT, writer="pack", remedy=remedy)
