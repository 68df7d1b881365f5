"""Choice of files in a repository: one model of GGUF files, or a whole checkpoint."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

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
    "unsplit",
]

_SPLIT = re.compile(r"(?P<stem>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
# Vision projectors and importance matrices are GGUF files that cannot be run.
_NO_MODEL = re.compile(r"(?:^|[._-])(?:mmproj[._-]|imatrix(?:_\w+)?\.gguf$)", re.IGNORECASE)
_TYPE = re.compile(
    r"(?<![A-Za-z0-9])(?:I?Q[1-9](?:_[A-Z0-9]+)*|B?F16|F32|TQ[12]_0|MXFP4(?:_[A-Z]+)?)"
    r"(?![A-Za-z0-9])",
    re.IGNORECASE,
)
_ACTIVATION = "activation/"
# The first form that a repository has; transformers prefers them in this order.
_WEIGHTS = (
    re.compile(r"model(?:-\d{5}-of-\d{5})?\.safetensors"),
    re.compile(r"(?!consolidated).*\.safetensors"),
    re.compile(r"pytorch_model(?:-\d{5}-of-\d{5})?\.bin"),
)
# Files that may hold a config, a tokenizer or a chat template.
_SETTINGS = re.compile(
    r"config\.json|generation_config\.json|tokenizer\.json|tokenizer\.model|tokenizer_config\.json"
    r"|special_tokens_map\.json|added_tokens\.json|vocab\.json|vocab\.txt|merges\.txt"
    r"|chat_template\.(?:jinja|json)|additional_chat_templates/[^/]+\.jinja"
)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """GGUF files of one model, parts in order, and its folder of PowerInfer's statistics."""

    parts: tuple[RemoteFile, ...]
    activation: tuple[RemoteFile, ...] = ()

    @property
    def files(self) -> tuple[RemoteFile, ...]:
        """All files."""
        return self.parts + self.activation

    @property
    def path(self) -> str:
        """Path without the number of a part; identifies the model."""
        return unsplit(self.parts[0].path)

    @property
    def num_bytes(self) -> int:
        """Size of the GGUF files."""
        return sum(part.num_bytes for part in self.parts)


def unsplit(path: str) -> str:
    """Drop the number of a part from a path: `a-00001-of-00002.gguf` becomes `a.gguf`."""
    split = _SPLIT.fullmatch(path)
    return f"{split['stem']}.gguf" if split else path


def models_in(listing: Listing) -> list[ModelFiles]:
    """Language models of a repository that have all their parts, sorted by path."""
    groups: dict[tuple[str, int], list[RemoteFile]] = {}
    for file in listing.files:
        if file.name.lower().endswith(".gguf") and not _NO_MODEL.search(file.name):
            split = _SPLIT.fullmatch(file.path)
            key = (split["stem"], int(split["count"])) if split else (file.path, 1)
            groups.setdefault(key, []).append(file)
    return [
        ModelFiles(tuple(files), _activation_of(files[0], listing))
        for (_, count), files in sorted(groups.items())
        if [_number(file) for file in files] == list(range(1, count + 1))
    ]


def choose_model(listing: Listing, reference: Reference) -> ModelFiles:
    """Choose the one model that a reference means.

    QUANT is a path, a file name, or a part of a path between characters other than letters and
    digits, such as `q4_k_m`; case does not matter.

    Raises:
        HubError: the repository has no model, none fits, or several do; the message lists them.
    """
    models = models_in(listing)
    if not models:
        raise HubError(f"{reference}: {_why_no_model(listing, reference)}")
    paths = [model.path for model in models]
    quant = reference.quant
    wanted = paths if quant is None else fitting(paths, unsplit(quant))
    if len(wanted) == 1:
        return models[paths.index(wanted[0])]
    what = f"{len(wanted)} models fit" if wanted else "no model fits; there are"
    sizes = {
        label_of(model.path, paths): format_bytes(model.num_bytes)
        for model in models
        if model.path in (wanted or paths)
    }
    listed = ", ".join(f"{label} ({size})" for label, size in sizes.items())
    example = Reference(reference.repository, next(iter(sizes)), reference.revision)
    raise HubError(f"{reference}: {what}: {listed}; name one, as in {example}")


def fitting(paths: Sequence[str], quant: str) -> list[str]:
    """Paths that a QUANT means: by their whole name, else by a part of it."""
    named = [path for path in paths if _is_named(path, quant)]
    return named or [path for path in paths if _has_part(path, quant)]


def label_of(path: str, paths: Sequence[str]) -> str:
    """Shortest QUANT that means one path among those of a repository."""
    for label in reversed(_TYPE.findall(path)):
        if fitting(paths, label) == [path]:
            return str(label)
    return path


def choose_checkpoint(listing: Listing, reference: Reference) -> tuple[RemoteFile, ...]:
    """Choose the files of a checkpoint that a conversion reads.

    These are config, tokenizer, chat templates, PowerInfer's `activation` folder, and the weights
    in one form with their index.

    Raises:
        HubError: the repository has no weights or no config, or the reference has a QUANT.
    """
    if reference.quant is not None:
        raise HubError(f"{reference}: a checkpoint is fetched whole; leave out :{reference.quant}")
    top = [file for file in listing.files if not file.folder]
    forms = ([file for file in top if form.fullmatch(file.name)] for form in _WEIGHTS)
    weights = next(filter(None, forms), [])
    if not weights or all(file.name != "config.json" for file in top):
        problem = "no checkpoint: expected config.json beside safetensors or pytorch_model*.bin"
        if models_in(listing):
            problem = f"GGUF files, which need no conversion: powerinfer pull {reference}"
        raise HubError(f"{reference}: the repository has {problem}")
    index = f".{weights[0].name.rpartition('.')[2]}.index.json"
    settings = [
        file
        for file in listing.files
        if _SETTINGS.fullmatch(file.path) or file.path.startswith(_ACTIVATION)
    ]
    # Small files first: a mistake shows before gigabytes have arrived.
    return (*settings, *(file for file in top if file.name.endswith(index)), *weights)


def _number(file: RemoteFile) -> int:
    split = _SPLIT.fullmatch(file.path)
    return int(split["no"]) if split else 1


def _activation_of(part: RemoteFile, listing: Listing) -> tuple[RemoteFile, ...]:
    folder = part.folder + _ACTIVATION
    return tuple(file for file in listing.files if file.folder == folder)


def _is_named(path: str, quant: str) -> bool:
    names = {path.lower(), path.lower().rpartition("/")[2]}
    return quant.lower() in names | {name.removesuffix(".gguf") for name in names}


def _has_part(path: str, quant: str) -> bool:
    # Q4_K is no part of Q4_K_M.
    part = rf"(?<![A-Za-z0-9]){re.escape(quant)}(?![A-Za-z0-9]|_[A-Za-z0-9])"
    return re.search(part, path.removesuffix(".gguf"), re.IGNORECASE) is not None


def _why_no_model(listing: Listing, reference: Reference) -> str:
    if any(file.name.lower().endswith(".gguf") for file in listing.files):
        return (
            "of its GGUF files none is a whole model; parts are missing, or it has only projectors "
            "of images or importance matrices"
        )
    if any(file.name.endswith((".safetensors", ".bin")) for file in listing.files):
        return (
            "the repository has no GGUF file; make one from its checkpoint: "
            f"powerinfer convert {reference.model} -o FILE"
        )
    return "the repository has neither a GGUF file nor a checkpoint"
