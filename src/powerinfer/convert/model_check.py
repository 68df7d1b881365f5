"""Check before writing that the engine can open the model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np

from powerinfer.convert.arrange import Target
from powerinfer.convert.checkpoint import Checkpoint
from powerinfer.convert.naming import Names
from powerinfer.errors import CheckpointError, GGUFError
from powerinfer.gguf import GGUFFile, MetadataValue, Tensor, ValueType
from powerinfer.models import Architecture, ModelConfig, read_config
from powerinfer.models.tensors.predictor_tensors import MLPTensors, find_predictors
from powerinfer.models.tensors.tensor_finder import TensorFinder

__all__ = ["check_model", "check_predictors", "without_data"]

_MAX_LISTED = 4


def check_model(
    checkpoint: Checkpoint,
    architecture: Architecture,
    metadata: Mapping[str, object],
    targets: Sequence[Target],
) -> None:
    """Check keys, names and shapes by the rules of the loader."""
    file = without_data(checkpoint.config.path, metadata, targets)
    names = Names(architecture)
    by_name = {target.name: target for target in targets}
    try:
        config = read_config(file, architecture)
        finder = TensorFinder(file, config, architecture)
        finder.all()
        lookup = finder.lookup
        _check_missing(checkpoint, names, lookup.missing)
        _check_shapes(by_name, lookup.misshapen)
    except GGUFError as error:
        raise CheckpointError(str(error)) from None
    predictors = check_predictors(file, config, architecture, targets)
    known = lookup.taken | {tensor.name for pair in predictors.values() for tensor in pair}
    extra = [target.sources for name, target in by_name.items() if name not in known]
    if extra:
        raise CheckpointError(f"{extra[0]} has no place in a {architecture.name} model")


def check_predictors(
    file: GGUFFile, config: ModelConfig, architecture: Architecture, targets: Sequence[Target]
) -> Mapping[int, MLPTensors]:
    """Check and return the predictors of a file to write, by number of their layer."""
    try:
        return find_predictors(file, config, architecture)
    except GGUFError as error:
        by_name = {target.name: target for target in targets}
        raise CheckpointError(_with_source(str(error), by_name)) from None


def _with_source(message: str, by_name: Mapping[str, Target]) -> str:
    """Replace the tensor's name by its source, which may be outside the checkpoint."""
    for name, target in by_name.items():
        _, found, problem = message.partition(f": tensor {name} ")
        if found:
            return f"{target.sources} {problem}"
    return message


def without_data(
    path: Path | str, metadata: Mapping[str, object], targets: Sequence[Target]
) -> GGUFFile:
    """Describe a file to write, with tensors that have no data."""
    tensors = {
        target.name: Tensor(target.name, target.shape, "f32", np.empty(0, np.uint8), Path(path))
        for target in targets
    }
    values = cast("dict[str, MetadataValue]", dict(metadata))
    types = dict.fromkeys(values, ValueType.STRING)
    return GGUFFile((Path(path),), "GGUF", 3, values, tensors, types, 0)


def _check_missing(checkpoint: Checkpoint, names: Names, missing: list[str]) -> None:
    if not missing:
        return
    theirs = list(dict.fromkeys(names.in_checkpoint(name) for name in missing))
    more = f" and {len(theirs) - _MAX_LISTED} more" if len(theirs) > _MAX_LISTED else ""
    what = "tensor" if len(theirs) == 1 else "tensors"
    are = "is" if len(theirs) == 1 else "are"
    listed = ", ".join(theirs[:_MAX_LISTED])
    raise CheckpointError(f"{checkpoint.index}: {what} {listed}{more} {are} missing")


def _check_shapes(by_name: Mapping[str, Target], misshapen: Mapping[str, str]) -> None:
    for name, problem in misshapen.items():
        target = by_name[name]
        source = target.pieces[0].source
        got, _, expected = problem.partition(", not ")
        if list(source.shape) == list(target.shape) and expected:
            raise CheckpointError(f"{source}: has the shape {got}; expected {expected}")
        raise CheckpointError(
            f"{target.sources}: of shape {list(source.shape)} makes {name} {problem}"
        )
