"""What the caches hold: whole models, checkpoints, and what a download has left; removing it."""

import glob
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from powerinfer._locks import try_lock
from powerinfer.errors import HubError
from powerinfer.hub.choice import choose_checkpoint, fitting, label_of, models_in, split_of
from powerinfer.hub.download import SUFFIX
from powerinfer.hub.listing import Listing, RemoteFile
from powerinfer.hub.names import Reference
from powerinfer.hub.places import (
    files_in,
    library_listing,
    library_repositories,
    our_repositories,
)
from powerinfer.hub.stored import forget_commit, recall_commit, recall_listing, stored_revisions

__all__ = ["HeldKind", "HeldModel", "fitting_models", "held_models", "remove"]

_GGUF = ".gguf"


class HeldKind(StrEnum):
    """What files in a cache are."""

    MODEL = "model"
    CHECKPOINT = "checkpoint"
    UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True)
class HeldModel:
    """Files in a cache that belong together.

    Attributes:
        reference: what `-m` and `rm` take.
        commit: of the repository.
        kind: what it is.
        path: of the GGUF file, of its first part, or of the folder of a checkpoint.
        files: all of them.
        is_ours: whether they lie in our cache, not in that of `huggingface_hub`.
    """

    reference: Reference
    commit: str
    kind: HeldKind
    path: Path
    files: tuple[Path, ...]
    is_ours: bool

    @property
    def num_bytes(self) -> int:
        """Size of all files, those included that only links lead to."""
        return sum(path.stat().st_size for path in self.files if path.exists())


def held_models() -> list[HeldModel]:
    """Everything in our cache, then the models in that of `huggingface_hub`."""
    ours = [model for place in our_repositories() for model in _in_folder(*place, is_ours=True)]
    library = [
        model
        for place in library_repositories()
        for model in _in_folder(*place, is_ours=False)
        if model.kind is HeldKind.MODEL
    ]
    return ours + library


def fitting_models(reference: Reference, held: Sequence[HeldModel]) -> list[HeldModel]:
    """Those that a reference means; of a model that lies in both caches, ours."""
    exact = [model for model in held if model.reference == reference]
    found = exact or [model for model in held if _fits(model, reference)]
    return [model for model in found if model.is_ours] or found


def remove(model: HeldModel) -> int:
    """Remove files of ours, and what was written beside a model for it.

    Returns:
        How many bytes that frees; files that others share count nothing.

    Raises:
        HubError: they belong to `huggingface_hub`, another process fetches them, or they cannot be
            removed.
    """
    if not model.is_ours:
        raise HubError(
            f"{model.reference}: it lies in the cache of huggingface_hub, whose command removes "
            f"it: hf cache rm model/{model.reference.repository}"
        )
    root = _root_of(model)
    doomed = [*model.files, *_written_beside(model)]
    freed = 0
    try:
        for path in doomed:
            _check_nobody_writes(path, model)
        for path in doomed:
            status = path.lstat()
            freed += status.st_size if status.st_nlink == 1 and not path.is_symlink() else 0
            path.unlink()
        _remove_empty(root)
    except OSError as problem:
        raise HubError(
            f"{problem.filename or model.path}: cannot be removed: {problem.strerror or problem}"
        ) from None
    if not root.exists():
        forget_commit(model.reference.repository, model.commit)
    return freed


def _in_folder(repository: str, commit: str, folder: Path, *, is_ours: bool) -> Iterator[HeldModel]:
    """What lies in the folder of a commit."""
    here = Listing(repository, commit, tuple(files_in(folder)))
    listed = recall_listing(Reference(repository, None, commit))
    known = listed or here
    revision = _revision_of(repository, commit)
    paths = [model.path for model in models_in(known)]
    taken: set[str] = set()
    for model in models_in(here):
        taken |= {file.path for file in model.files}
        # Of a repository whose listing is not known there may be more.
        is_only_one = listed is not None and len(paths) == 1
        label = None if is_only_one else label_of(model.path, paths)
        yield HeldModel(
            reference=Reference(repository, label, revision),
            commit=commit,
            kind=HeldKind.MODEL,
            path=folder / model.parts[0].path,
            files=tuple(folder / file.path for file in model.files),
            is_ours=is_ours,
        )
    rest = [file for file in here.files if file.path not in taken]
    yield from _rest(rest, known, Reference(repository, None, revision), folder, is_ours=is_ours)


def _rest(
    files: Sequence[RemoteFile],
    known: Listing,
    reference: Reference,
    folder: Path,
    *,
    is_ours: bool,
) -> Iterator[HeldModel]:
    """Checkpoints, and what downloads left: by model for GGUF files, else together."""
    groups: dict[str, list[RemoteFile]] = {}
    for file in files:
        path = _meant_path(file)
        if path.lower().endswith(_GGUF):
            split = split_of(path)
            groups.setdefault(f"{split.stem}{_GGUF}" if split else path, []).append(file)
        elif not _is_sidecar(path):
            groups.setdefault("", []).append(file)
    for path, members in groups.items():
        is_whole = not path and _is_checkpoint(members, known)
        yield HeldModel(
            reference=Reference(reference.repository, path or None, reference.revision),
            commit=known.commit,
            kind=HeldKind.CHECKPOINT if is_whole else HeldKind.UNFINISHED,
            path=folder / path if path else folder,
            files=tuple(folder / file.path for file in members),
            is_ours=is_ours,
        )


def _fits(model: HeldModel, reference: Reference) -> bool:
    if model.reference.repository != reference.repository:
        return False
    if reference.revision is not None and model.commit != recall_commit(reference):
        return False
    path = model.path.relative_to(_root_of(model)).as_posix()
    return reference.quant is None or bool(fitting([path], reference.quant))


def _meant_path(file: RemoteFile) -> str:
    """The path that a file will have when all of it has arrived."""
    if not file.name.endswith(SUFFIX):
        return file.path
    return file.folder + file.name.removesuffix(SUFFIX)[1:].rpartition(".")[0]


def _is_sidecar(path: str) -> bool:
    """Whether a file was written beside a GGUF file, such as a calibration."""
    return _GGUF + "." in path.lower()


def _is_checkpoint(files: Sequence[RemoteFile], known: Listing) -> bool:
    """Whether all files of a checkpoint are there."""
    paths = {file.path for file in files}
    try:
        wanted = choose_checkpoint(known, Reference(known.repository))
    except HubError:
        return False
    return all(file.path in paths for file in wanted)


def _revision_of(repository: str, commit: str) -> str | None:
    """How a commit is named most shortly: not at all if `main` is it."""
    main = Reference(repository)
    library = library_listing(main)
    if commit in (recall_commit(main), library.commit if library else None):
        return None
    named = (revision for revision, other in stored_revisions(repository) if other == commit)
    return next(named, commit)


def _root_of(model: HeldModel) -> Path:
    """The folder of the commit."""
    path = model.path
    while path.name != model.commit:
        path = path.parent
    return path


def _written_beside(model: HeldModel) -> list[Path]:
    """Calibrations and plans of the model that lie beside it."""
    if model.kind is not HeldKind.MODEL:
        return []
    return sorted(model.path.parent.glob(f"{glob.escape(model.path.name)}.*"))


def _check_nobody_writes(path: Path, model: HeldModel) -> None:
    if not path.name.endswith(SUFFIX):
        return
    with path.open("r+b") as file:
        try:
            try_lock(file)
        except BlockingIOError:
            raise HubError(f"{model.reference}: another process is fetching it") from None
        except OSError:
            return  # a file system without locks


def _remove_empty(folder: Path) -> None:
    """Remove a folder and those in it that are empty."""
    for inner in sorted(folder.rglob("*/"), reverse=True):
        with suppress(OSError):
            inner.rmdir()
    with suppress(OSError):
        folder.rmdir()
