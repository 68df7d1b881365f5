"""Which files of a repository are meant: one model of GGUF files, or a whole checkpoint."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from powerinfer._files import format_bytes
from powerinfer.errors import HubError
from powerinfer.hub.listing import Listing, RemoteFile
from powerinfer.hub.names import Reference

__all__ = ["ModelFiles", "choose_checkpoint", "choose_model", "label_of", "models_in"]

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
        split = _SPLIT.fullmatch(self.parts[0].path)
        return f"{split['stem']}.gguf" if split else self.parts[0].path

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
            split = _SPLIT.fullmatch(file.path)
            key = (split["stem"], int(split["count"])) if split else (file.path, 1)
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
    if reference.quant is None:
        fitting = models
    else:
        named = [model for model in models if _is_named(model, reference.quant)]
        fitting = named or [model for model in models if _has_part(model, reference.quant)]
    if len(fitting) == 1:
        return fitting[0]
    what = f"{len(fitting)} models fit" if fitting else "no model fits; there are"
    example = _example(reference, (fitting or models)[0], models)
    raise HubError(
        f"{reference}: {what}: {_listed(fitting or models, models)}; name one, as in {example}"
    )


def label_of(model: ModelFiles, models: Sequence[ModelFiles]) -> str:
    """The shortest QUANT that means this model among those of its repository."""
    types = _TYPE.findall(model.path)
    for label in reversed(types):
        if [other for other in models if _has_part(other, label)] == [model]:
            return str(label)
    return model.path


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
    splits = [_SPLIT.fullmatch(file.path) for file in files]
    return [int(split["no"]) if split else 1 for split in splits]


def _activation_beside(listing: Listing, part: RemoteFile) -> tuple[RemoteFile, ...]:
    folder = part.folder + _ACTIVATION
    return tuple(file for file in listing.files if file.folder == folder)


def _is_named(model: ModelFiles, quant: str) -> bool:
    names = {model.path.lower(), *(part.path.lower() for part in model.parts)}
    names |= {name.rpartition("/")[2] for name in names}
    names |= {name.removesuffix(".gguf") for name in names}
    return quant.lower() in names


def _has_part(model: ModelFiles, quant: str) -> bool:
    # Q4_K is no part of Q4_K_M.
    part = rf"(?<![A-Za-z0-9]){re.escape(quant)}(?![A-Za-z0-9]|_[A-Za-z0-9])"
    return re.search(part, model.path.removesuffix(".gguf"), re.IGNORECASE) is not None


def _listed(shown: Sequence[ModelFiles], models: Sequence[ModelFiles]) -> str:
    return ", ".join(f"{label_of(each, models)} ({format_bytes(each.num_bytes)})" for each in shown)


def _example(reference: Reference, model: ModelFiles, models: Sequence[ModelFiles]) -> Reference:
    return Reference(reference.repository, label_of(model, models), reference.revision)


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
