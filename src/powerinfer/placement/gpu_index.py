"""PowerInfer's GPU index, `MODEL.gguf.generated.gpuidx`: the hot neurons of each layer.

A GGUF container with PowerInfer's magic and two tensors per layer, found by their position: a mask
of all neurons and the ascending ids of those on the GPU. Files that we write have two more keys,
the model's identity among them, which PowerInfer ignores. Its own files lack them, and for more
than ten layers name neurons of the wrong layers: it sorts `activation_10.pt` before
`activation_2.pt` when it looks up ids.
"""

import logging
import os
from pathlib import Path

import numpy as np

from powerinfer.errors import GGUFError, PlacementError
from powerinfer.gguf import GGUFFile, TensorSpec, keys, open_gguf, write_gguf
from powerinfer.placement.plan import LayerPlacement, PlacementPlan
from powerinfer.placement.problem import PlacementProblem
from powerinfer.values import IntArray

__all__ = [
    "SOLVER",
    "SUFFIX",
    "beside",
    "check_target",
    "is_our_index",
    "read_gpu_index",
    "write_gpu_index",
]

SOLVER = "gpu-index"
"""Solver name of plans from such files."""
SUFFIX = ".generated.gpuidx"
"""Suffix of an index, after the name of its model."""

ARCHITECTURE = "generic.gpu_index"
BLOCK_COUNT = f"{ARCHITECTURE}.block_count"
# Bytes of GPU memory for neurons: those needed in our files, those available in PowerInfer's.
VRAM_CAPACITY = "split.vram_capacity"
IDENTITY = "powerinfer.plan.model_identity"
VERSION_KEY = "powerinfer.plan.version"
_VERSION = 1
_MAGIC = "PWRI"
# Above this, sorting file names as text differs from sorting them as numbers.
_MOST_RIGHT_LAYERS = 10

_log = logging.getLogger(__name__)


def beside(model_path: Path) -> Path:
    """Return `MODEL.generated.gpuidx`, where PowerInfer looks for it."""
    return model_path.with_name(model_path.name + SUFFIX)


def is_our_index(path: Path) -> bool:
    """Return whether a file is an index with our keys."""
    try:
        return IDENTITY in open_gguf(path).metadata
    except GGUFError:
        return False


def read_gpu_index(path: Path, problem: PlacementProblem) -> PlacementPlan:
    """Read an index as a plan for the problem's budget: all but cold neurons is on the GPU.

    Of PowerInfer's own files for many layers, it warns.

    Raises:
        PlacementError: it is damaged, or made for a model of another identity or size.
    """
    sizes = problem.sizes
    try:
        if path.is_dir():
            raise PlacementError(f"{path}: is a folder; name a .gpuidx file")
        file = open_gguf(path)
        is_ours = _check_made_for(file, problem.model_identity)
        hot = _hot_neurons(file, len(sizes.layers), sizes.num_neurons)
    except (GGUFError, OSError) as error:
        raise PlacementError(f"cannot read the GPU index: {error}") from None
    if not is_ours and len(hot) > _MOST_RIGHT_LAYERS:
        _log.warning(
            "%s: PowerInfer's tool made this GPU index, which for models of more than %d layers "
            "takes neurons from the statistics of other layers, from layer 2 on: `powerinfer plan` "
            "makes a better one",
            path,
            _MOST_RIGHT_LAYERS,
        )
    layers = (
        LayerPlacement(has_attention=True, has_predictor=layer.predictor_bytes > 0, hot=ids)
        for layer, ids in zip(sizes.layers, hot, strict=True)
    )
    return PlacementPlan(
        model_identity=problem.model_identity,
        solver=SOLVER,
        budget_bytes=problem.budget_bytes,
        num_neurons=sizes.num_neurons,
        has_output=True,
        layers=tuple(layers),
    )


def write_gpu_index(path: Path, plan: PlacementPlan, vram_capacity: int) -> None:
    """Write the hot neurons of a plan, atomically.

    Args:
        plan: plan of a model with an identity; its other fields have no place in such a file.
        vram_capacity: bytes of GPU memory that its neurons need.

    Raises:
        PlacementError: the target is a file that is not ours, or it cannot be written.
    """
    check_target(path)
    metadata = {
        keys.ARCHITECTURE: ARCHITECTURE,
        BLOCK_COUNT: np.uint32(len(plan.layers)),
        VRAM_CAPACITY: np.uint64(vram_capacity),
        VERSION_KEY: np.uint32(_VERSION),
        IDENTITY: plan.model_identity,
    }
    tensors: list[TensorSpec] = []
    for number, layer in enumerate(plan.layers):
        mask = np.zeros(plan.num_neurons, "<i4")
        mask[layer.hot] = 1
        for name, values in (("gpu_idx", mask), ("gpu_bucket", layer.hot.astype("<i4"))):
            tensors.append((f"blk.{number}.{name}", values.shape, "i32", values.view(np.uint8)))
    try:
        write_gguf(path, metadata, tensors, magic=_MAGIC)
    except GGUFError as error:
        raise PlacementError(f"cannot write the GPU index: {error}") from None


def check_target(path: Path) -> None:
    """Raise PlacementError if `write_gpu_index` would replace a file that is not ours."""
    if os.path.lexists(path) and not is_our_index(path):
        raise PlacementError(
            f"{path}: is not a GPU index of this program, and is not overwritten: name another "
            "file, or move this one away"
        )


def _check_made_for(file: GGUFFile, model_identity: str) -> bool:
    """Check that a file is an index that may be of this model; return whether we wrote it."""
    if file.magic != _MAGIC or file.get_str(keys.ARCHITECTURE) != ARCHITECTURE:
        raise PlacementError(
            f"{file.path}: is not a GPU index: it needs the magic {_MAGIC} and the architecture "
            f"{ARCHITECTURE}"
        )
    file.get_int(VRAM_CAPACITY)
    if IDENTITY not in file.metadata:
        return False
    version = file.get_int(VERSION_KEY)
    if version != _VERSION:
        raise PlacementError(
            f"{file.path}: is a GPU index of version {version}, this program reads version "
            f"{_VERSION}: run `powerinfer plan` again"
        )
    identity = file.get_str(IDENTITY)
    if identity != model_identity:
        raise PlacementError(
            f"{file.path}: this GPU index was made for another model (identity "
            f"{identity[:12]:.12}..., this one's is {model_identity[:12]}...): run `powerinfer "
            "plan` for this one"
        )
    return True


def _hot_neurons(file: GGUFFile, num_layers: int, num_neurons: int) -> list[IntArray]:
    """Return the ascending ids of the neurons on the GPU by layer; its two tensors must agree."""
    path, tensors = file.path, list(file.tensors.values())
    # The block count in the metadata is unreliable: PowerInfer counts statistics files there.
    if len(tensors) != 2 * num_layers:
        raise PlacementError(
            f"{path}: has {len(tensors)} tensors, needs two for each of the model's {num_layers} "
            "layers; it was made for another model: run `powerinfer plan` for this one"
        )
    for index, tensor in enumerate(tensors):
        wanted = f"blk.{index // 2}.{('gpu_idx', 'gpu_bucket')[index % 2]}"
        if tensor.name != wanted or tensor.format != "i32" or len(tensor.shape) != 1:
            raise PlacementError(
                f"{path}: expected the i32 vector {wanted}, found the {tensor.format:.20} tensor "
                f"{tensor.name!r:.60} with {len(tensor.shape)} dimensions"
            )
    hot = []
    for number in range(num_layers):
        flags, ids = (tensor.numbers() for tensor in tensors[2 * number : 2 * number + 2])
        if len(flags) != num_neurons:
            raise PlacementError(
                f"{path}: layer {number} has {len(flags)} neurons, the model's have {num_neurons}: "
                "it was made for another model"
            )
        if not np.isin(flags, (0, 1)).all() or not np.array_equal(np.flatnonzero(flags), ids):
            raise PlacementError(
                f"{path}: layer {number}: gpu_bucket does not list, in ascending order, the "
                "neurons that gpu_idx marks; the file is damaged: run `powerinfer plan` again"
            )
        hot.append(np.array(ids, np.int32))
    return hot
