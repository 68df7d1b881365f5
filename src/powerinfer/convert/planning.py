"""Plan of a converted file, decided and checked before any number is read."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from powerinfer import _plugins
from powerinfer.convert.arrange import Target
from powerinfer.convert.checkpoint import Checkpoint, open_checkpoint
from powerinfer.convert.model_check import check_model
from powerinfer.convert.model_tensors import EMBEDDING, check_head, model_tensors
from powerinfer.convert.powerinfer.format import (
    MAGIC,
    check_is_known,
    differences,
    powerinfer_architecture,
    renamed,
    with_head,
)
from powerinfer.convert.powerinfer.predictors import activation_files, read_predictors
from powerinfer.convert.tokenizers import check_tokenizer, read_tokenizer
from powerinfer.errors import CheckpointError, UnsupportedError
from powerinfer.gguf import keys
from powerinfer.models import Architecture
from powerinfer.models.checkpoints.config import CheckpointConfig
from powerinfer.models.checkpoints.metadata import (
    architecture_of_checkpoint,
    checkpoint_activation,
    is_tied,
    model_metadata,
    named_for,
)
from powerinfer.models.tensors.ffn_tensors import ROUTER, SHARED
from powerinfer.quant import get_format
from powerinfer.values import Activation

__all__ = ["OUTTYPES", "ModelPlan", "plan_model"]

OUTTYPES = ("auto", "f32", "f16", "bf16", "q8_0")
# Values of `general.file_type`.
_FILE_TYPES = {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}
_COMMIT = re.compile("[0-9a-f]{40}")
_QUANTIZATION_VERSION = 2
# Routers, gates, kernels of convolutions, and what decides about the state of a sequence.
_PLAIN = (
    *(ROUTER, ROUTER + SHARED, "shortconv.conv"),
    *("ssm_conv1d", "ssm_alpha", "ssm_beta", "ssm_norm"),
)
_PARAMETERS = ("bias", "ssm_a", "ssm_d")
_PREDICTORS = (".fc1.weight", ".fc2.weight")


@dataclass(frozen=True)
class ModelPlan:
    """A file to write, what to copy next to it, and what to report; see `ConvertReport`."""

    architecture: Architecture
    magic: str
    metadata: Mapping[str, object]
    targets: Sequence[Target]
    formats: Mapping[str, str]
    outtype: str
    activation_files: Sequence[Path]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Model:
    """A checkpoint's model before formats are chosen.

    Attributes:
        config: configuration with the names of the family.
        metadata: keys without those of the file and the tokenizer.
    """

    config: CheckpointConfig
    architecture: Architecture
    activation: Activation
    metadata: dict[str, object]
    targets: list[Target]

    @property
    def has_predictors(self) -> bool:
        """PowerInfer predictors are among the tensors."""
        return any(target.name.endswith(_PREDICTORS) for target in self.targets)


def plan_model(
    folder: Path, path: Path, *, outtype: str, predictors: Path | None, is_plain: bool
) -> ModelPlan:
    """Plan a file; arguments and errors as for `convert`."""
    if outtype not in OUTTYPES:
        raise _plugins.unsupported("outtype", outtype, OUTTYPES)
    if is_plain and predictors is not None:
        raise UnsupportedError("a plain file has no predictors: leave out one of the two options")
    checkpoint = open_checkpoint(folder)
    model = _read_model(checkpoint, is_plain=is_plain)
    if predictors is not None or is_plain:
        kept = [each for each in model.targets if not each.name.endswith(_PREDICTORS)]
        model = replace(model, targets=kept)
    if predictors is not None:
        model = _with_folder(model, predictors)
    if model.has_predictors:
        model = _for_powerinfer(model)
    if outtype == "auto":
        outtype = "f16" if model.has_predictors else _format_of_most(model.targets)
    formats = {target.name: _format(target, outtype) for target in model.targets}
    metadata = model.metadata | _about_file(folder, outtype, formats)
    metadata |= read_tokenizer(folder, _num_rows(checkpoint, model))
    check_model(checkpoint, model.architecture, metadata, model.targets)
    check_tokenizer(folder, metadata)
    folders = [folder] if predictors is None else [predictors, folder]
    return ModelPlan(
        architecture=model.architecture,
        magic=MAGIC if model.has_predictors else "GGUF",
        metadata=metadata,
        targets=model.targets,
        formats=formats,
        outtype=outtype,
        activation_files=activation_files(folders, path),
        notes=_notes(outtype, model) if model.has_predictors else (),
    )


def _read_model(checkpoint: Checkpoint, *, is_plain: bool) -> _Model:
    """Read the model as stored in the checkpoint."""
    architecture = architecture_of_checkpoint(checkpoint.config)
    config = named_for(checkpoint.config, architecture)
    activation = checkpoint_activation(config, architecture)
    metadata = model_metadata(config, architecture)
    is_down_transposed = activation.is_sparse and not is_plain
    targets = model_tensors(
        checkpoint, config, architecture, metadata, is_down_transposed=is_down_transposed
    )
    if not is_tied(config, architecture):
        check_head(checkpoint, targets)
    return _Model(config, architecture, activation, metadata, targets)


def _with_folder(model: _Model, folder: Path) -> _Model:
    powerinfer_architecture(model.architecture, model.activation, str(model.config.path))
    found = read_predictors(folder, range(model.config.integer("num_hidden_layers")))
    metadata = dict(model.metadata)
    if found.threshold is not None:
        metadata[keys.SPARSE_THRESHOLD] = found.threshold
    return replace(model, metadata=metadata, targets=[*model.targets, *found.targets])


def _for_powerinfer(model: _Model) -> _Model:
    """Adapt the model to what the original PowerInfer reads."""
    where = str(model.config.path)
    architecture = powerinfer_architecture(model.architecture, model.activation, where)
    metadata = renamed(model.metadata, model.architecture, architecture)
    metadata[keys.ARCHITECTURE] = architecture.name
    by_name = with_head({target.name: target for target in model.targets}, architecture)
    check_is_known(by_name, architecture, metadata)
    targets = [replace(target, name=name) for name, target in by_name.items()]
    return replace(model, architecture=architecture, metadata=metadata, targets=targets)


def _format_of_most(targets: Sequence[Target]) -> str:
    counts = Counter[str]()
    for target in targets:
        if len(target.shape) > 1 and not target.is_mxfp4:
            counts[target.pieces[0].source.format] += prod(target.shape)
    found = counts.most_common(1)[0][0] if counts else "f32"
    return found if found in _FILE_TYPES else "f32"


def _format(target: Target, outtype: str) -> str:
    """Choose a format: F32 for what is small or delicate, F16 for rows that are no whole blocks."""
    module, _, part = target.name.rpartition(".")
    if target.is_mxfp4:
        return "mxfp4"
    if len(target.shape) < 2 or part in _PARAMETERS or module.endswith(_PLAIN):
        return "f32"
    return "f16" if target.shape[-1] % get_format(outtype).block_size else outtype


def _about_file(folder: Path, outtype: str, formats: Mapping[str, str]) -> dict[str, object]:
    found: dict[str, object] = {keys.NAME: _name(folder), keys.FILE_TYPE: _FILE_TYPES[outtype]}
    if {"q8_0", "mxfp4"} & set(formats.values()):
        found[keys.QUANTIZATION_VERSION] = _QUANTIZATION_VERSION
    return found


def _name(folder: Path) -> str:
    """Model name: the folder's, or the repository's for a commit in a cache."""
    folder = folder.resolve()
    if folder.parent.name == "snapshots":
        return folder.parent.parent.name.rpartition("--")[2]
    return folder.parent.name if _COMMIT.fullmatch(folder.name) else folder.name


def _num_rows(checkpoint: Checkpoint, model: _Model) -> int:
    """Rows of the embedding, the length of the vocabulary."""
    embedding = next((each for each in model.targets if each.name == EMBEDDING), None)
    if embedding is None:
        raise CheckpointError(f"{checkpoint.index}: the tensor of token embeddings is missing")
    vocab_size = model.config.integer("vocab_size")
    if len(embedding.shape) != 2 or embedding.shape[0] != vocab_size:
        raise CheckpointError(
            f"{embedding.sources}: has the shape {list(embedding.shape)}; expected {vocab_size} "
            "rows, the vocab_size of config.json"
        )
    return vocab_size


def _notes(outtype: str, model: _Model) -> tuple[str, ...]:
    """List differences between the original program's computation and the engine's."""
    found = differences(model.architecture, model.activation, model.metadata)
    if outtype == "f16":
        return found
    return (f"the original PowerInfer computes predicted neurons in F16, not in {outtype}", *found)
