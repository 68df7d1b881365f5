"""Open model files: one file, the parts of a split one, or the only model in a folder.

Files are mapped, not read: opening reads the header, and tensor data is read on use.
"""

import contextlib
import mmap
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from powerinfer.errors import GGUFError
from powerinfer.gguf import keys
from powerinfer.gguf.file import GGUFFile, Tensor
from powerinfer.gguf.header import Header, parse_header
from powerinfer.gguf.value_types import shown

__all__ = ["open_gguf"]

_SPLIT_NAME = re.compile(r"(?P<stem>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def open_gguf(path: str | os.PathLike[str]) -> GGUFFile:
    """Open a model.

    Args:
        path: a GGUF or PowerInfer file; any part ``-00001-of-0000N.gguf`` of a split one, which
            opens them all; or a folder that holds exactly one model.

    Returns:
        The open model. The mapping lasts as long as any view of a tensor; the files must not be
        truncated or overwritten in place meanwhile.

    Raises:
        GGUFError: the file cannot be read or is not a valid model.
    """
    first = Path(path)
    if _is_folder(first):
        first = _only_model_in(first)
    part = _open_part(first)
    count = _split_int(part, keys.SPLIT_COUNT, 1)
    return _assemble([part] if count in (0, 1) else _open_split(first, count))


@dataclass(frozen=True)
class _Part:
    """One mapped file of a model."""

    path: Path
    buffer: mmap.mmap
    header: Header


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False  # opening it will raise the error


def _only_model_in(folder: Path) -> Path:
    try:
        files = sorted(entry for entry in folder.iterdir() if entry.suffix == ".gguf")
    except OSError as error:
        raise GGUFError(f"{folder}: cannot list the folder: {error.strerror}") from None
    models: dict[str, Path] = {}
    for file in files:
        split = _SPLIT_NAME.fullmatch(file.name)
        models.setdefault(split["stem"] if split else file.name, file)
    if len(models) == 1:
        return next(iter(models.values()))
    if not models:
        raise GGUFError(f"{folder}: the folder holds no .gguf file")
    names = ", ".join(file.name for file in list(models.values())[:5])
    more = ", ..." if len(models) > 5 else ""
    raise GGUFError(f"{folder}: the folder holds {len(models)} models ({names}{more}); name one")


def _open_part(path: Path) -> _Part:
    buffer = _map(path)
    return _Part(path, buffer, parse_header(buffer, path))


def _map(path: Path) -> mmap.mmap:
    # Without O_NONBLOCK, opening a pipe without a writer would block forever.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        raise GGUFError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the name
        reason = getattr(error, "strerror", None) or error
        name = str(path).replace("\0", "\\0")
        raise GGUFError(f"{name}: cannot open: {reason}") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise GGUFError(f"{path}: is not a regular file")
        if status.st_size == 0:
            raise GGUFError(f"{path}: is empty")
        mapping = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise GGUFError(f"{path}: cannot map: {error.strerror}") from None
    finally:
        os.close(descriptor)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # Lets Linux read a file that is not cached yet into huge pages, from which weights are read
        # faster. Kernels without support refuse.
        with contextlib.suppress(OSError):
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping


def _split_int(part: _Part, key: str, default: int | None = None) -> int:
    value = part.header.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise GGUFError(f"{part.path}: metadata key '{key}': expected a count, got {value!r:.80}")
    return value


def _open_split(path: Path, count: int) -> list[_Part]:
    name = _SPLIT_NAME.fullmatch(path.name)
    if name is None:
        raise GGUFError(
            f"{path}: is one of {count} parts, but its name does not end in -00001-of-"
            f"{count:05}.gguf, so the others cannot be found; restore the original names"
        )
    if int(name["count"]) != count:
        raise GGUFError(
            f"{path}: its name says {int(name['count'])} parts, "
            f"its metadata key '{keys.SPLIT_COUNT}' says {count}"
        )
    parts = []
    for number in range(count):
        sibling = path.with_name(f"{name['stem']}-{number + 1:05}-of-{count:05}.gguf")
        part = _open_part(sibling)
        found = (_split_int(part, keys.SPLIT_NO), _split_int(part, keys.SPLIT_COUNT))
        if found != (number, count):
            raise GGUFError(
                f"{sibling}: expected to be part {number} of {count}, its metadata says "
                f"part {found[0]} of {found[1]}"
            )
        parts.append(part)
    return parts


def _assemble(parts: list[_Part]) -> GGUFFile:
    path, first = parts[0].path, parts[0].header
    tensors: dict[str, Tensor] = {}
    for part in parts:
        if part.header.magic != first.magic:
            raise GGUFError(f"{part.path}: magic {part.header.magic} differs from the first part's")
        for info in part.header.tensors:
            if info.name in tensors:
                raise GGUFError(f"{part.path}: tensor {shown(info.name)} is in two parts")
            data = np.frombuffer(part.buffer, np.uint8, info.num_bytes, info.start)
            tensors[info.name] = Tensor(info.name, info.shape, info.format, data, part.path)
    expected = _split_int(parts[0], keys.SPLIT_TENSORS_COUNT, len(tensors))
    if len(parts) > 1 and expected != len(tensors):
        raise GGUFError(f"{path}: the parts hold {len(tensors)} tensors, expected {expected}")
    return GGUFFile(
        paths=tuple(part.path for part in parts),
        magic=first.magic,
        version=first.version,
        metadata=first.metadata,
        tensors=tensors,
        types=first.types,
        num_bytes=sum(len(part.buffer) for part in parts),
    )
