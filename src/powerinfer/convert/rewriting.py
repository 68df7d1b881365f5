"""Checks before a model is packed or quantized, and what the new file leaves out."""

from contextlib import suppress
from functools import partial
from pathlib import Path

from powerinfer._replacing import find_target
from powerinfer.errors import GGUFError
from powerinfer.gguf import GGUFFile, keys, open_gguf
from powerinfer.gguf.rewrite import rewrite

__all__ = ["check_target", "left_out", "write_model"]

# A calibration belongs to the exact bytes of a model and would be rejected with others.
_LEFT_OUT = {keys.SPLIT_NO, keys.SPLIT_COUNT, keys.SPLIT_TENSORS_COUNT, keys.CALIBRATION}

write_model = partial(rewrite, dropped=_LEFT_OUT)
"""Write a model with other tensors; see `rewrite`. Its calibration is dropped."""


def left_out(file: GGUFFile) -> list[str]:
    """Messages about what `write_model` drops."""
    if keys.CALIBRATION not in file.metadata:
        return []
    return [
        "the calibration in the file is left out, as it belongs to the old weights; run "
        "`powerinfer calibrate` again"
    ]


def check_target(file: GGUFFile, path: Path, *, key: str, writer: str, remedy: str) -> None:
    """Check before computing that at most an older result would be lost.

    Args:
        key: metadata key of all files that the writer makes.

    Raises:
        GGUFError: `path` is one of the source files, or a file of another writer.
    """
    target = find_target(path, error=GGUFError)
    for source in file.paths:
        with suppress(OSError):
            if source.samefile(path):
                raise GGUFError(f"{path}: is the model being read; choose another output file")
    if target.exists() and target.stat().st_size and not _has_key(target, key):
        raise GGUFError(f"{path}: already exists and was not written by {writer}", remedy=remedy)


def _has_key(path: Path, key: str) -> bool:
    try:
        return key in open_gguf(path).metadata
    except GGUFError:
        return False
