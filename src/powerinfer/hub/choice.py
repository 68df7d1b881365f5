"""Which files of a repository are meant: one model of GGUF files, or a whole checkpoint."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from powerinfer._files import format_bytes
from powerinfer.errors import HubError
from powerinfer.hub.listing import Listing, RemoteFile
from powerinfer.hub.names import Reference

__all__ = [
    "ModelFiles",
    "choose_checkpoint",
    "choose_model",
    "fitting",
    "label_of",
    "models_in",
    "split_of",
]

_SPLIT = re.compile(r"(?P<stem>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
# Vision projectors and importance matrices are GGUF files that nothing can run.
_NO_MODEL = re.compile(r"(?:^|[._-])(?:mmproj[._-]|imatrix(?:_\w+)?\.gguf$)", re.IGNORECASE)
_TYPE = re.compile(
    r"(?<![A-Za-z0-9])(?:I?Q[1-9](?:_[A-Z0-9]+)*|B?F16|F32|TQ[12]_0|MXFP4(?:_[A-Z]+)?)"
    r"(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_ACTIVATION = "activation/"
_ONE_MODEL_WEIGHTS = re.compile(r"model(?:-\d{5}-of-\d{5})?\.safetensors")
_BIN_WEIGHTS = re.compile(r"pytorch_model(?:-\d{5}-of-\d{5})?\.bin")
# Beside the weights, whatever a config or a tokenizer is stored in.
_SETTINGS = re.compile(
    r"config\.json|generation_config\.json|tokenizer\.json|tokenizer\.model|tokenizer_config\.json"
    r"|special_tokens_map\.json|added_tokens\.json|vocab\.json|vocab\.txt|merges\.txt"
    r"|chat_template\.(?:jinja|json)|additional_chat_templates/[^/]+\.jinja"
)


class Split(NamedTuple):
    """What the name of a part of a split file says: the model's, which part, of how many."""

    stem: str
    number: int
    num_parts: int


def split_of(path: str) -> Split | None:
    """See `Split`; None for a file that is no part."""
    found = _SPLIT.fullmatch(path)
    return Split(found["stem"], int(found["no"]), int(found["count"])) if found else None


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A model in a repository.

    Attributes:
        parts: its GGUF file, or all parts of it in order.
        activation: the files of PowerInfer's folder of statistics beside it.
    """

    parts: tuple[RemoteFile, ...]
    activation: tuple[RemoteFile, ...] = ()

    @property
    def files(self) -> tuple[RemoteFile, ...]:
        """All of them."""
        return self.parts + self.activation

    @property
    def path(self) -> str:
        """Path of the model without the numbers of its parts: names it."""
        split = split_of(self.parts[0].path)
        return f"{split.stem}.gguf" if split else self.parts[0].path

    @property
    def num_bytes(self) -> int:
        """Size of the GGUF files."""
        return sum(part.num_bytes for part in self.parts)


def models_in(listing: Listing) -> list[ModelFiles]:
    """All models of a repository that are whole, sorted by path.

    Files that are no language model (projectors of images, importance matrices) are left out.
    """
    groups: dict[tuple[str, int], list[RemoteFile]] = {}
    for file in listing.files:
        if file.name.lower().endswith(".gguf") and not _NO_MODEL.search(file.name):
            split = split_of(file.path)
            key = (split.stem, split.num_parts) if split else (file.path, 1)
            groups.setdefault(key, []).append(file)
    whole = [
        tuple(files)
        for (_, count), files in sorted(groups.items())
        if len(files) == count and _numbers(files) == list(range(1, count + 1))
    ]
    return [ModelFiles(parts, _activation_beside(listing, parts[0])) for parts in whole]


def choose_model(listing: Listing, reference: Reference) -> ModelFiles:
    """The one model that a reference means.

    QUANT is a path, a file name, or a part of a path between other characters than letters and
    digits, such as `q4_k_m`; case does not matter.

    Raises:
        HubError: none fits, or several do, which are listed; the repository has no model.
    """
    models = models_in(listing)
    if not models:
        raise _no_model(listing, reference)
    paths = [model.path for model in models]
    quant = reference.quant
    wanted = paths if quant is None else fitting(paths, _whole_name(quant))
    if len(wanted) == 1:
        return models[paths.index(wanted[0])]
    what = f"{len(wanted)} models fit" if wanted else "no model fits; there are"
    shown = wanted or paths
    labels = {
        label_of(model.path, paths): format_bytes(model.num_bytes)
        for model in models
        if model.path in shown
    }
    listed = ", ".join(f"{label} ({size})" for label, size in labels.items())
    example = Reference(reference.repository, next(iter(labels)), reference.revision)
    raise HubError(f"{reference}: {what}: {listed}; name one, as in {example}")


def label_of(path: str, paths: Sequence[str]) -> str:
    """The shortest QUANT that means the model with this path among those of its repository."""
    for label in reversed(_TYPE.findall(path)):
        if fitting(paths, label) == [path]:
            return str(label)
    return path


def choose_checkpoint(listing: Listing, reference: Reference) -> tuple[RemoteFile, ...]:
    """The files of a checkpoint that a conversion reads.

    Config, tokenizer, PowerInfer's `activation` folder, and the weights: safetensors, or
    `pytorch_model*.bin` if there are none. Of weights in two forms, those that transformers reads.

    Raises:
        HubError: the repository has no weights or no config, or a file was named.
    """
    if reference.quant is not None:
        raise HubError(f"{reference}: a checkpoint is fetched whole; leave out :{reference.quant}")
    top = [file for file in listing.files if not file.folder]
    weights = (
        [file for file in top if _ONE_MODEL_WEIGHTS.fullmatch(file.name)]
        or [
            file
            for file in top
            if file.name.endswith(".safetensors") and not file.name.startswith("consolidated")
        ]
        or [file for file in top if _BIN_WEIGHTS.fullmatch(file.name)]
    )
    if not weights or all(file.name != "config.json" for file in top):
        raise _no_checkpoint(listing, reference)
    ends = (".safetensors.index.json",) if weights[0].name.endswith("s") else (".bin.index.json",)
    indexes = [file for file in top if file.name.endswith(ends)]
    settings = [
        file
        for file in listing.files
        if _SETTINGS.fullmatch(file.path) or file.path.startswith(_ACTIVATION)
    ]
    # What is small comes first: a mistake shows before gigabytes have arrived.
    return (*settings, *indexes, *weights)


def _numbers(files: Sequence[RemoteFile]) -> list[int]:
    splits = [split_of(file.path) for file in files]
    return [split.number if split else 1 for split in splits]


def _activation_beside(listing: Listing, part: RemoteFile) -> tuple[RemoteFile, ...]:
    folder = part.folder + _ACTIVATION
    return tuple(file for file in listing.files if file.folder == folder)


def fitting(paths: Sequence[str], quant: str) -> list[str]:
    """The paths of models that a QUANT means: by the whole name, else by a part of the path."""
    named = [path for path in paths if _is_named(path, quant)]
    return named or [path for path in paths if _has_part(path, quant)]


def _whole_name(quant: str) -> str:
    """Without the number of a part: any part names the model."""
    split = split_of(quant)
    return f"{split.stem}.gguf" if split else quant


def _is_named(path: str, quant: str) -> bool:
    names = {path.lower(), path.lower().rpartition("/")[2]}
    names |= {name.removesuffix(".gguf") for name in names}
    return quant.lower() in names


def _has_part(path: str, quant: str) -> bool:
    # Q4_K is no part of Q4_K_M.
    part = rf"(?<![A-Za-z0-9]){re.escape(quant)}(?![A-Za-z0-9]|_[A-Za-z0-9])"
    return re.search(part, path.removesuffix(".gguf"), re.IGNORECASE) is not None


def _no_model(listing: Listing, reference: Reference) -> HubError:
    if any(file.name.lower().endswith(".gguf") for file in listing.files):
        return HubError(
            f"{reference}: of its GGUF files none is a whole model; parts are missing, or it has "
            "only projectors of images or importance matrices"
        )
    if any(file.name.endswith((".safetensors", ".bin")) for file in listing.files):
        return HubError(
            f"{reference}: the repository has no GGUF file; make one from its checkpoint: "
            f"powerinfer convert {reference.model} -o FILE"
        )
    return HubError(f"{reference}: the repository has neither a GGUF file nor a checkpoint")


def _no_checkpoint(listing: Listing, reference: Reference) -> HubError:
    if models_in(listing):
        return HubError(
            f"{reference}: the repository has GGUF files, which need no conversion: "
            f"powerinfer pull {reference}"
        )
    return HubError(
        f"{reference}: the repository has no checkpoint: expected config.json beside safetensors "
        "or pytorch_model*.bin"
    )
