"""Packing a model with the predictors of a folder, for the original PowerInfer if it has such."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import cast

from powerinfer import _plugins
from powerinfer._replacing import make_folder_of
from powerinfer.convert.arrange import Target
from powerinfer.convert.encode import encoded, steps
from powerinfer.convert.model_check import check_predictors, without_data
from powerinfer.convert.pack import PackedPredictors, PackReport, check_may_replace, pack
from powerinfer.convert.powerinfer.format import (
    MAGIC,
    check_is_known,
    differences,
    has_architecture,
    powerinfer_architecture,
    renamed,
)
from powerinfer.convert.powerinfer.predictors import (
    Predictors,
    activation_files,
    copy_activation,
    read_predictors,
)
from powerinfer.convert.powerinfer.tensors import find_origins, is_predictor, make_tensor
from powerinfer.convert.rewriting import write_model
from powerinfer.errors import GGUFError, NumericsError
from powerinfer.gguf import GGUFFile, MetadataValue, keys
from powerinfer.gguf.rewrite import Progress, StoredTensor
from powerinfer.models import Architecture, ModelConfig, architecture_of, read_config
from powerinfer.models.activation import activation_metadata
from powerinfer.models.tensors.tensor_finder import TensorFinder
from powerinfer.values import ByteArray

__all__ = ["fits_gguf_only", "pack_with_predictors"]

_LAYOUT = "rows"
_FORMAT = "f16"
# Values of `general.file_type`.
_FILE_TYPES = {"f16": 1, "q4_0": 2}


def pack_with_predictors(
    file: GGUFFile,
    predictors: Path,
    output: Path,
    *,
    layout: str = _LAYOUT,
    activation: str | None = None,
    progress: Progress | None = None,
) -> PackReport:
    """Write a model with predictors to one file of PowerInfer's own format, atomically.

    A sparse dense model that this format lacks becomes a GGUF file in layout `rows` instead, with
    its predictors in F16.

    Plain matrices become F16; so do matrices read by neuron rows unless they are Q4_0, since the
    original supports nothing else. Predictors in the model are replaced. Activation statistics of
    the folder, or next to the model, are copied next to the file.

    Args:
        predictors: folder with `model_N.pt` of each layer; its `config.json` may contain the
            scores' `sparse_threshold`.
        output: file to write (its folder is created); only a file that packing wrote is replaced.
        activation: activation of the FFN if the model has no key for it.

    Raises:
        UnsupportedError: the original has no such model or layout; the message says what is
            unknown.
        GGUFError: the model is damaged, `output` is the model or another file that would be lost,
            or it cannot be written.
        CheckpointError: the predictors are damaged or belong to another model, or there are
            statistics of another model next to `output`.
        NumericsError: a number is NaN, infinite or does not fit its format.
        DeviceError: torch, which reads predictors, is not installed.
    """
    if layout != _LAYOUT:
        raise _plugins.unsupported("layout", layout, (_LAYOUT,))
    check_may_replace(file, output)
    own = architecture_of(file)
    config = read_config(file, own, activation)
    if fits_gguf_only(own, config):
        return _pack_gguf(file, own, config, predictors, output, progress)
    architecture = powerinfer_architecture(own, config.activation, str(file.path))
    _check_model(file, config, own)
    found, ranks = _read(file, config, own, predictors)
    origins = find_origins(file, architecture)
    header = _header(file, config, architecture, found.threshold)
    check_is_known(origins, architecture, header.metadata)
    statistics = activation_files([predictors, file.path.absolute().parent], output)
    made = [make_tensor(name, origin) for name, origin in origins.items()]
    make_folder_of(output, error=GGUFError)
    stored = [*made, *map(_predictor, found.targets)]
    write_model(header, output, {}, stored, progress)
    copy_activation(statistics, output)
    return PackReport(
        output,
        _LAYOUT,
        tuple(each for each in made if each.error or each.sources[0].shape != each.shape),
        output.stat().st_size,
        PackedPredictors(architecture.name, ranks, found.threshold, _share(file, found)),
        differences(architecture, config.activation, header.metadata),
    )


def fits_gguf_only(architecture: Architecture, config: ModelConfig) -> bool:
    """Return whether predictors of a model go into a GGUF file: the original has no such models."""
    if not config.activation.is_sparse:
        return False
    has_experts = config.experts is not None
    return has_experts or not has_architecture(architecture, config.activation)


def _pack_gguf(
    file: GGUFFile,
    architecture: Architecture,
    config: ModelConfig,
    predictors: Path,
    output: Path,
    progress: Progress | None,
) -> PackReport:
    """Write a GGUF file with the predictors of a folder, F16, in layout `rows`."""
    _check_model(file, config, architecture)
    found, ranks = _read(file, config, architecture, predictors)
    threshold = 0.0 if found.threshold is None else found.threshold
    # Predictors that the file has may be of another form.
    kept = {name: tensor for name, tensor in file.tensors.items() if not is_predictor(name)}
    report = pack(
        replace(file, tensors=kept),
        output,
        layout=_LAYOUT,
        metadata={**activation_metadata(config.activation), keys.SPARSE_THRESHOLD: threshold},
        added=[_predictor(target) for target in found.targets],
        progress=progress,
    )
    experts = "" if config.experts is None else " experts of"
    note = (
        f"PowerInfer's format has no {architecture.name} with{experts} {config.activation}: this "
        "is a GGUF file for this program alone; --sparsity mlp runs its predictors"
    )
    packed = PackedPredictors(
        architecture.name, ranks, threshold, _share(file, found), is_original=False
    )
    return replace(report, predictors=packed, notes=(note,))


def _read(
    file: GGUFFile, config: ModelConfig, architecture: Architecture, folder: Path
) -> tuple[Predictors, tuple[int, ...]]:
    """Read the predictors of a folder, and check them; also returns their ranks."""
    experts = (config.num_experts, config.intermediate_size if config.num_experts else 0)
    found = read_predictors(folder, config.counted_layers, experts=experts)
    described = without_data(file.path, {}, found.targets)
    pairs = check_predictors(described, config, architecture, found.targets)
    return found, tuple(fc1.shape[-2] for fc1, _ in pairs.values())


def _check_model(file: GGUFFile, config: ModelConfig, architecture: Architecture) -> None:
    """Check that the engine could run the model; one with experts is rejected later by name."""
    if config.experts is not None:
        return
    finder = TensorFinder(file, config, architecture)
    finder.all()
    finder.lookup.raise_problems()


def _header(
    file: GGUFFile, config: ModelConfig, architecture: Architecture, threshold: float | None
) -> GGUFFile:
    """The model with magic and keys of the file to write."""
    own = architecture_of(file)
    metadata: dict[str, object] = {**renamed(file.metadata, own, architecture)}
    metadata.setdefault(keys.of_architecture(architecture.name, own.norm_eps_key), config.norm_eps)
    # Format of the matrices read by neurons.
    up = file.tensors.get("blk.0.ffn_up.weight")
    is_q4_0 = up is not None and up.format == "q4_0"
    added = activation_metadata(config.activation) | {
        keys.ARCHITECTURE: architecture.name,
        keys.LAYOUT: _LAYOUT,
        keys.FILE_TYPE: _FILE_TYPES["q4_0" if is_q4_0 else "f16"],
    }
    metadata.pop(keys.SPARSE_THRESHOLD, None)
    if threshold is not None:
        added[keys.SPARSE_THRESHOLD] = threshold
    types = renamed(file.types, own, architecture)
    return replace(
        file,
        magic=MAGIC,
        metadata=cast("dict[str, MetadataValue]", metadata | added),
        types={key: each for key, each in types.items() if key not in added},
    )


def _predictor(target: Target) -> StoredTensor:
    return StoredTensor(target.name, target.shape, _FORMAT, partial(_encoded, target))


def _encoded(target: Target) -> Iterator[ByteArray]:
    for step in steps(target):
        try:
            yield encoded(step, _FORMAT)
        except NumericsError as error:
            # The error's remedy is another format, which the original does not support.
            raise NumericsError(error.message) from None


def _share(file: GGUFFile, predictors: Predictors) -> float:
    """Predictors' parameters relative to the model's without them."""
    own = sum(
        tensor.num_elements for tensor in file.tensors.values() if not is_predictor(tensor.name)
    )
    return sum(prod(tensor.shape) for tensor in predictors.tensors.values()) / own
