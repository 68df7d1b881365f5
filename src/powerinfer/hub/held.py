"""Contents of the caches: complete models, checkpoints, unfinished downloads; their removal."""

import glob
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from powerinfer._locks import try_lock
from powerinfer.errors import HubError
from powerinfer.hub.caches import Snapshot, library_listing, snapshots
from powerinfer.hub.choice import choose_checkpoint, fitting, label_of, models_in, unsplit
from powerinfer.hub.download import SUFFIX
from powerinfer.hub.listing import (
    Listing,
    RemoteFile,
    forget_commit,
    recall_commit,
    recall_listing,
    stored_revisions,
)
from powerinfer.hub.names import Reference
from powerinfer.hub.package_names import ModelName, PackageFile

__all__ = ["HeldKind", "HeldModel", "fitting_models", "held_models", "remove"]


class HeldKind(StrEnum):
    """Kind of files in a cache."""

    MODEL = "model"
    CHECKPOINT = "checkpoint"
    UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True)
class HeldModel:
    """Files in a cache that belong together.

    Attributes:
        reference: name for `-m` and `rm`.
        commit: version of a package.
        path: first GGUF file, or the folder of a checkpoint.
        is_ours: False for files in the cache of `huggingface_hub`.
    """

    reference: ModelName
    commit: str
    kind: HeldKind
    path: Path
    files: tuple[Path, ...]
    root: Path
    is_ours: bool

    @property
    def num_bytes(self) -> int:
        """Size of all files, including those that are links."""
        return sum(path.stat().st_size for path in self.files if path.exists())


def held_models() -> list[HeldModel]:
    """List everything in our cache, then the models in that of `huggingface_hub`."""
    held = [model for snapshot in snapshots() for model in _models_of(snapshot)]
    return [model for model in held if model.is_ours or model.kind is HeldKind.MODEL]


def fitting_models(reference: ModelName, held: Sequence[HeldModel]) -> list[HeldModel]:
    """Select the models that a reference means; ours if a model is in both caches."""
    exact = [model for model in held if model.reference == reference]
    found = exact or [model for model in held if _fits(model, reference)]
    return [model for model in found if model.is_ours] or found


def remove(model: HeldModel) -> int:
    """Remove a model of ours with the calibrations and plans written for it.

    Returns:
        Number of bytes freed; links and files that other commits share count as none.

    Raises:
        HubError: it belongs to `huggingface_hub`, another process fetches it, or a file cannot be
            removed.
    """
    if not model.is_ours:
        raise HubError(
            f"{model.reference}: it is in the cache of huggingface_hub; remove it with: "
            f"hf cache rm model/{model.reference.repository}"
        )
    doomed = list(model.files)
    if model.kind is HeldKind.MODEL:
        doomed += sorted(model.path.parent.glob(f"{glob.escape(model.path.name)}.*"))
    freed = 0
    try:
        for path in doomed:
            _check_unlocked(path, model)
        for path in doomed:
            status = path.lstat()
            freed += status.st_size if status.st_nlink == 1 and not path.is_symlink() else 0
            path.unlink()
    except OSError as problem:
        raise HubError(
            f"{problem.filename or model.path}: cannot be removed: {problem.strerror or problem}"
        ) from None
    for folder in (*sorted(model.root.rglob("*/"), reverse=True), model.root, model.root.parent):
        with suppress(OSError):  # not empty
            folder.rmdir()
    if isinstance(model.reference, Reference) and not model.root.exists():
        forget_commit(model.reference.repository, model.commit)
    return freed


def _models_of(snapshot: Snapshot) -> Iterator[HeldModel]:
    here, folder, is_ours = snapshot
    repository, commit = here.repository, here.commit
    listed = recall_listing(Reference(repository, None, commit))
    known = listed or here
    revision = _revision_of(repository, commit)

    def held(
        kind: HeldKind, quant: str | None, path: str, files: Sequence[RemoteFile]
    ) -> HeldModel:
        reference = Reference(repository, quant, revision)
        paths = tuple(folder / file.path for file in files)
        return HeldModel(reference, commit, kind, folder / path, paths, folder, is_ours)

    paths = [model.path for model in models_in(known)]
    models = models_in(here)
    for model in models:
        # If the listing is unknown, the repository may have more models.
        is_only_one = listed is not None and len(paths) == 1
        quant = None if is_only_one else label_of(model.path, paths)
        yield held(HeldKind.MODEL, quant, model.parts[0].path, model.files)
    taken = {file for model in models for file in model.files}
    rest = [file for file in here.files if file not in taken]
    for path, files in _by_model(rest).items():
        is_whole = not path and _is_checkpoint(files, known)
        kind = HeldKind.CHECKPOINT if is_whole else HeldKind.UNFINISHED
        yield held(kind, path or None, path, files)


def _by_model(files: Sequence[RemoteFile]) -> dict[str, list[RemoteFile]]:
    """Group files by the GGUF file they are part of, all others under an empty path."""
    groups: dict[str, list[RemoteFile]] = {}
    for file in files:
        path = file.path
        if file.name.endswith(SUFFIX):
            path = file.folder + file.name.removesuffix(SUFFIX)[1:].rpartition(".")[0]
        if path.lower().endswith(".gguf"):
            groups.setdefault(unsplit(path), []).append(file)
        elif ".gguf." not in path.lower():  # else a calibration or a plan
            groups.setdefault("", []).append(file)
    return groups


def _is_checkpoint(files: Sequence[RemoteFile], known: Listing) -> bool:
    paths = {file.path for file in files}
    try:
        wanted = choose_checkpoint(known, Reference(known.repository))
    except HubError:
        return False
    return all(file.path in paths for file in wanted)


def _revision_of(repository: str, commit: str) -> str | None:
    """Shortest name of a commit: None if `main` is it, else a known revision or its hash."""
    main = Reference(repository)
    library = library_listing(main)
    if commit in (recall_commit(main), library.commit if library else None):
        return None
    named = (revision for revision, other in stored_revisions(repository) if other == commit)
    return next(named, commit)


def _fits(model: HeldModel, reference: ModelName) -> bool:
    if model.reference.repository != reference.repository:
        return False
    if isinstance(reference, PackageFile):
        return reference.file is None and model.reference.model == str(reference)
    if reference.revision is not None and model.commit != recall_commit(reference):
        return False
    path = model.path.relative_to(model.root).as_posix()
    return reference.quant is None or bool(fitting([path], reference.quant))


def _check_unlocked(path: Path, model: HeldModel) -> None:
    if not path.name.endswith(SUFFIX):
        return
    with path.open("r+b") as file:
        try:
            try_lock(file)
        except BlockingIOError:
            raise HubError(f"{model.reference}: another process is fetching it") from None
        except OSError:
            return  # a file system without locks
