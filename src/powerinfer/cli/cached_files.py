"""Files in the user's cache folder, with their kinds, sizes and models."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from powerinfer._files import cache_folder, cache_root
from powerinfer._replacing import abandoned_files
from powerinfer.offload.activation_profile import PROFILE
from powerinfer.offload.device_speeds import CPU_SPEEDS
from powerinfer.placement import gpu_index
from powerinfer.placement.plan import PLAN
from powerinfer.predictors.calibration_json import CALIBRATION
from powerinfer.store.cached_models import MODEL

__all__ = ["FOLDERS", "UNFINISHED", "CachedFile", "cached_files", "ignored_setting"]

UNFINISHED = "unfinished"
"""Kind of the unfinished files that killed processes left."""

_IDENTITY = re.compile(r"[0-9a-f]{64}")
# Names of temporary files before they contained the host.
_OLD_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{8}\.part", re.DOTALL)


FOLDERS = {
    CALIBRATION.folder: (CALIBRATION.suffix,),
    PROFILE.folder: (PROFILE.suffix,),
    CPU_SPEEDS.sidecar.folder: (CPU_SPEEDS.sidecar.suffix,),
    MODEL.folder: (MODEL.suffix,),
    PLAN.folder: (PLAN.suffix, gpu_index.SUFFIX),
}
"""Suffixes of file names by folder; each kind of file has a folder."""


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A file that this program wrote into the cache.

    Attributes:
        kind: name of its folder, or `UNFINISHED`.
        model_identity: None if the file belongs to no model or is unfinished.
    """

    path: Path
    kind: str
    num_bytes: int
    model_identity: str | None


def cached_files() -> list[CachedFile]:
    """All files in the cache that this program wrote; others may be there too."""
    found = (
        each
        for folder, suffixes in sorted(FOLDERS.items())
        for each in _files_of(cache_folder(folder), suffixes)
    )
    return sorted(found, key=lambda each: (each.kind, str(each.path)))


def ignored_setting() -> str | None:
    """The value of `XDG_CACHE_HOME` if it is ignored because it is relative, else None."""
    wanted = os.environ.get("XDG_CACHE_HOME", "").strip()
    is_ignored = wanted and not cache_root().is_relative_to(Path(wanted).absolute())
    return wanted if is_ignored and not Path(wanted).is_absolute() else None


def _files_of(folder: Path, suffixes: tuple[str, ...]) -> Iterator[CachedFile]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    left = {path.name for path in abandoned_files(folder)}
    for entry in entries:
        is_unfinished = entry.name in left or _OLD_TEMPORARY.fullmatch(entry.name)
        if entry.is_dir(follow_symlinks=False) or not (
            is_unfinished or entry.name.endswith(suffixes)
        ):
            continue
        kind = UNFINISHED if is_unfinished else folder.name
        identity = None if is_unfinished else _IDENTITY.match(entry.name)
        try:
            num_bytes = entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            continue  # removed by another process
        yield CachedFile(
            path=folder / entry.name,
            kind=kind,
            num_bytes=num_bytes,
            model_identity=identity[0] if identity else None,
        )
